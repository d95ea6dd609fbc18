#include "support/source_dir.h"

#include <cstdlib>

namespace sluice::testing {

std::filesystem::path source_dir() {
  const char* given = std::getenv("SLUICE_SOURCE_DIR");
  return given == nullptr || *given == '\0' ? SLUICE_SOURCE_DIR : given;
}

}  // namespace sluice::testing
