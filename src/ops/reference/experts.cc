// p = e^(logit - largest) / sum; out = sum over slots of share * down (silu(gate x) * up x).
#include "ops/reference/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::reference {
namespace {

double dot(const BFloat16* a, const BFloat16* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(static_cast<float>(a[i])) * static_cast<float>(b[i]);
  }
  return sum;
}

}  // namespace

// The order follows the logits, whose differences the probabilities keep; a stable sort leaves
// equal ones in the order of their index.
RouteOutput route_experts(const std::vector<float>& logits, int64_t num_experts, int64_t k,
                          bool normalize) {
  RouteOutput output;
  for (size_t row = 0; row < logits.size(); row += static_cast<size_t>(num_experts)) {
    const float* own = logits.data() + row;
    const double largest = *std::max_element(own, own + num_experts);
    double sum = 0;
    for (int64_t e = 0; e < num_experts; ++e) sum += std::exp(own[e] - largest);
    for (int64_t e = 0; e < num_experts; ++e) {
      output.probabilities.push_back(std::exp(own[e] - largest) / sum);
    }
    std::vector<int32_t> order(static_cast<size_t>(num_experts));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return own[a] > own[b]; });
    double chosen = 0;
    for (int64_t slot = 0; slot < k; ++slot) {
      const int32_t expert = order[static_cast<size_t>(slot)];
      output.experts.push_back(expert);
      output.shares.push_back(std::exp(own[expert] - largest) / sum);
      chosen += output.shares.back();
    }
    if (!normalize) continue;
    for (int64_t slot = 0; slot < k; ++slot) *(output.shares.end() - 1 - slot) /= chosen;
  }
  return output;
}

// Hidden channel by hidden channel: each adds its column of down.
ExpertOutput expert_mlp(const ExpertInput& in) {
  ExpertOutput output{.value = std::vector<double>(in.x.size()),
                      .magnitude = std::vector<double>(in.x.size())};
  for (int64_t pair = 0; pair < in.m * in.k; ++pair) {
    const BFloat16* x = in.x.data() + pair / in.k * in.hidden;
    const int64_t expert = in.experts[static_cast<size_t>(pair)];
    const double share = in.shares[static_cast<size_t>(pair)];
    for (int64_t j = 0; j < in.intermediate; ++j) {
      const int64_t row = (expert * in.intermediate + j) * in.hidden;
      const double gate = dot(x, in.gate.data() + row, in.hidden);
      const double up = dot(x, in.up.data() + row, in.hidden);
      const double act = gate / (1 + std::exp(-gate)) * up;
      for (int64_t c = 0; c < in.hidden; ++c) {
        const int64_t at = (expert * in.hidden + c) * in.intermediate + j;
        const double down = share * static_cast<float>(in.down[static_cast<size_t>(at)]);
        const auto out = static_cast<size_t>(pair / in.k * in.hidden + c);
        output.value[out] += down * act;
        output.magnitude[out] += std::abs(down * gate * up);
      }
    }
  }
  for (size_t i = 0; i < in.shared.size(); ++i) {
    const double gate = in.shared_gate[i / static_cast<size_t>(in.hidden)];
    output.value[i] +=
        static_cast<double>(static_cast<float>(in.shared[i])) / (1 + std::exp(-gate));
  }
  return output;
}

}  // namespace sluice::reference
