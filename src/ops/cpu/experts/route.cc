// The router's choice on the CPU: a softmax and a selection sort of k of a few hundred.
//
// Thread rule: enqueue only; ranges of rows run on the stream's team.
#include <algorithm>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/scalar_math.h"

namespace sluice::cpu {
namespace {

// The args as plain pointers.
struct RouteCall {
  float* scores;     // [num_rows][num_experts]
  int32_t* experts;  // [num_rows][k]
  float* shares;     // [num_rows][k]
  int64_t num_rows;
  int64_t num_experts;
  int64_t k;
  bool normalize;
};

// Plain f32 in ascending order, without regard to the ISA: the choice is the same on every CPU.
void softmax(float* scores, int64_t num_experts) {
  const float largest = *std::max_element(scores, scores + num_experts);
  float sum = 0.0f;
  for (int64_t e = 0; e < num_experts; ++e) {
    scores[e] = fast_exp(scores[e] - largest);
    sum += scores[e];
  }
  for (int64_t e = 0; e < num_experts; ++e) scores[e] /= sum;
}

// The best expert that is not among the `num_chosen` first. NaN is above nothing, so experts with
// it come last, by index. k passes over the experts: for 8 of 128 a thousand comparisons a row, of
// a layer that multiplies millions.
int32_t next_expert(const float* scores, int64_t num_experts, const int32_t* chosen,
                    int64_t num_chosen) {
  int32_t best = -1;
  for (int64_t e = 0; e < num_experts; ++e) {
    if (std::find(chosen, chosen + num_chosen, e) != chosen + num_chosen) continue;
    const bool is_above =
        best < 0 || scores[e] > scores[best] || (scores[best] != scores[best] && scores[e] >= 0);
    if (is_above) best = static_cast<int32_t>(e);
  }
  return best;
}

void route_row(const RouteCall& call, int64_t row) {
  float* const scores = call.scores + row * call.num_experts;
  int32_t* const experts = call.experts + row * call.k;
  float* const shares = call.shares + row * call.k;
  softmax(scores, call.num_experts);
  float sum = 0.0f;
  for (int64_t slot = 0; slot < call.k; ++slot) {
    experts[slot] = next_expert(scores, call.num_experts, experts, slot);
    shares[slot] = scores[experts[slot]];
    sum += shares[slot];
  }
  if (!call.normalize) return;
  for (int64_t slot = 0; slot < call.k; ++slot) shares[slot] /= sum;
}

}  // namespace

void CpuOps::route_experts(Stream& stream, const RouteExpertsArgs& args) const {
  matmul(stream, {.x = args.x, .weight = args.router, .bias = {}, .out = args.scores});
  const RouteCall call{.scores = args.scores.data<float>(),
                       .experts = args.experts.data<int32_t>(),
                       .shares = args.shares.data<float>(),
                       .num_rows = args.scores.dim(0),
                       .num_experts = args.scores.dim(1),
                       .k = args.experts.dim(1),
                       .normalize = args.normalize};
  as_cpu(stream).submit("route_experts", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, call.num_experts * call.k, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) route_row(call, row);
    });
  });
}

}  // namespace sluice::cpu
