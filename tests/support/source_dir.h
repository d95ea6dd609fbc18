// Where the repository is, for tests that read its models and golden files.
//
// The build sets it; the environment variable SLUICE_SOURCE_DIR overrides it for test programs that
// were copied to another machine (tools/gpu/pack.sh). Thread rule: any thread.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace sluice::testing {

inline std::filesystem::path source_dir() {
  const char* given = std::getenv("SLUICE_SOURCE_DIR");
  return given == nullptr || *given == '\0' ? SLUICE_SOURCE_DIR : given;
}

}  // namespace sluice::testing
