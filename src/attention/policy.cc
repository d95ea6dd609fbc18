// The shared half of every policy: phases and their refusal.
#include "attention/policy.h"

#include "core/error.h"

namespace sluice {

std::string_view phase_name(Phase phase) { return phase == Phase::kPrefill ? "prefill" : "decode"; }

Selection Policy::select_blocks(Stream& stream, const SelectInput& input) {
  if (!supports(input.phase)) fail_unsupported_phase(*this, input.phase);
  return do_select_blocks(stream, input);
}

void fail_unsupported_phase(const Policy& policy, Phase phase) {
  const Phase other = phase == Phase::kPrefill ? Phase::kDecode : Phase::kPrefill;
  fail(ErrorCode::kUnsupported,
       "sparse policy '{}' does not support {}, only {}; use it for that phase and 'full' for {}",
       policy.name(), phase_name(phase), phase_name(other), phase_name(phase));
}

}  // namespace sluice
