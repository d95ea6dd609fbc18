// The ops of the gated delta rule in double precision, written from the equations. Used by tests
// only. Thread rule: pure functions over host-readable memory.
#pragma once

#include <vector>

#include "ops/delta/delta.h"

namespace sluice::reference {

// What `out` must be. States are read and none is written: of the rows of a call those of a
// sequence that begins in the call, or before it in another call, start from its read slot.
std::vector<double> short_conv(const ShortConvArgs& args);

struct DeltaRuleResult {
  std::vector<double> out;       // [m, num_v_heads * v_dim]
  std::vector<double> matrices;  // [num_seqs, num_v_heads], each as in a state, after the call
};
// REQUIRES: the call has all rows of the pass.
DeltaRuleResult delta_rule(const DeltaRuleArgs& args);

std::vector<double> gated_norm(const GatedNormArgs& args);
std::vector<double> sigmoid_gate(const SigmoidGateArgs& args);

}  // namespace sluice::reference
