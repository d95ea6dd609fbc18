// The shared half of every policy: phase refusal, defaults and the list of names.
#include "attention/policy.h"

#include "attention/policies/full.h"

namespace sluice {

std::string_view phase_name(Phase phase) { return phase == Phase::kPrefill ? "prefill" : "decode"; }

void Policy::initialize(Device&, const KvLayout&) {}

void Policy::reset(SequenceId) {}

Selection Policy::select_blocks(Stream& stream, const SelectInput& input) {
  if (!supports(input.phase)) fail_unsupported_phase(*this, input.phase);
  return do_select_blocks(stream, input);
}

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "full") return std::make_unique<FullPolicy>();
  fail(ErrorCode::kInvalidArgument, "sparse_policy is '{}', but the policies are: full", name);
}

void fail_unsupported_phase(const Policy& policy, Phase phase) {
  const Phase other = phase == Phase::kPrefill ? Phase::kDecode : Phase::kPrefill;
  fail(ErrorCode::kUnsupported,
       "sparse policy '{}' does not support {}, only {}; use it for that phase and 'full' for {}",
       policy.name(), phase_name(phase), phase_name(other), phase_name(phase));
}

}  // namespace sluice
