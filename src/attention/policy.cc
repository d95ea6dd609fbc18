// Names of phases.
#include "attention/policy.h"

namespace sluice {

std::string_view phase_name(Phase phase) {
  constexpr std::string_view kNames[] = {"prefill", "decode", "verify"};
  return kNames[static_cast<size_t>(phase)];
}

}  // namespace sluice
