// Names of phases.
#include "attention/policy.h"

namespace sluice {

std::string_view phase_name(Phase phase) { return phase == Phase::kPrefill ? "prefill" : "decode"; }

}  // namespace sluice
