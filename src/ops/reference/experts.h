// The router's choice and the chosen MLPs in double precision, written from their equations.
//
// Used by tests only. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace sluice::reference {

struct RouteOutput {
  std::vector<double> probabilities;  // [m, num_experts]
  std::vector<int32_t> experts;       // [m, k]
  std::vector<double> shares;         // [m, k]
};

// logits [m, num_experts].
RouteOutput route_experts(const std::vector<float>& logits, int64_t num_experts, int64_t k,
                          bool normalize);

// Weights as in a checkpoint, one expert after the other.
struct ExpertInput {
  std::vector<BFloat16> x;         // [m, hidden]
  std::vector<int32_t> experts;    // [m, k]
  std::vector<float> shares;       // [m, k]
  std::vector<BFloat16> gate;      // [num_experts, intermediate, hidden]
  std::vector<BFloat16> up;        // the same
  std::vector<BFloat16> down;      // [num_experts, hidden, intermediate]
  std::vector<BFloat16> shared;    // [m, hidden] or empty
  std::vector<float> shared_gate;  // [m], with `shared`
  int64_t m = 0;
  int64_t k = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
};

struct ExpertOutput {
  std::vector<double> value;  // [m, hidden]
  // The same sums of |share * down * gate * up|, which scales errors of rounding gate, up and their
  // product.
  std::vector<double> magnitude;
};

ExpertOutput expert_mlp(const ExpertInput& input);

}  // namespace sluice::reference
