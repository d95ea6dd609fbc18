// A mixture of experts: the router's choice, and the MLPs that it chose.
//
// Used by model/layers/expert_mlp. On the CPU device a row of either result depends on that row
// alone, whatever experts its neighbours choose. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/arena.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

// A weight of each expert, all of one shape and format, at equal distances in device memory.
struct PackedExperts {
  PackedWeight first;
  int32_t num_experts = 0;
  size_t stride_bytes = 0;

  // While a layout only plans, there is no memory to point to.
  PackedWeight expert(int64_t index) const {
    PackedWeight weight = first;
    if (weight.present()) weight.data += static_cast<size_t>(index) * stride_bytes;
    return weight;
  }
};

struct RouteExpertsArgs {
  TensorView x;            // bf16 [m, hidden]
  PackedWeight router;     // bf16 [num_experts, hidden]
  TensorView scores;       // f32 [m, num_experts]: the probabilities
  TensorView experts;      // i32 [m, k]: the chosen, by falling probability
  TensorView shares;       // f32 [m, k]: what the output of each is multiplied by
  bool normalize = false;  // the shares of a row are divided by their sum
};

// Softmax over the products of a row with all rows of the router, and its k largest. Of equal
// probabilities the expert of the lowest index comes first, which torch leaves open. NaN is chosen
// last.
// Shapes: x [m, hidden], router [num_experts, hidden], scores [m, num_experts], experts [m, k],
// shares [m, k], k <= num_experts.
// Types: bf16 x and router; f32, i32 indices; computed in f32. Shares are not rounded to bf16, as
// transformers does.
// Aliasing: none overlap.
// Order: enqueue only; rows do not depend on each other.
// Errors: those of every op (ops/ops.h); on CUDA kUnsupported, thrown by the call, for more than
// 512 experts or 32 slots. Source: Fedus 2021, arXiv 2101.03961, equations 1 and 2; normalize:
// Jiang 2024, arXiv 2401.04088.
void route_experts(Stream& stream, const RouteExpertsArgs& args);

// Bytes of a row in e4m3, with a scale for 128 columns.
constexpr int64_t coded_row_bytes(int64_t num_columns) {
  return num_columns + (num_columns + kScaleGroup - 1) / kScaleGroup * int64_t{sizeof(float)};
}

// Working memory of expert_mlp for up to m rows. A pair is a row and one of its k slots; pairs lie
// by expert, and those of one expert by row.
struct ExpertScratch {
  TensorView places;   // i32 [m * k]: where each pair lies
  TensorView pairs;    // i32 [m * k]: the pair at each place
  TensorView begins;   // i32 [num_experts + 1]: the places of each expert
  TensorView jobs;     // i32 [num_experts + 1]: how its product is cut
  TensorView rows;     // bf16 [m * k, hidden]: x of each pair
  TensorView gate_up;  // bf16 [m * k, 2 * intermediate]
  TensorView act;      // bf16 [m * k, intermediate]
  // u8 [m * k, coded_row_bytes(intermediate)]: act in e4m3, then scales; may be where gate_up is.
  TensorView act_codes;
  TensorView products;  // f32 [m * k, hidden]; may be where rows and gate_up are
};

struct ExpertSizes {
  int64_t num_rows = 0;
  int64_t num_slots = 0;  // k
  int64_t num_experts = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
};
ExpertScratch cut_expert_scratch(Arena& arena, const ExpertSizes& sizes);

// In a call of up to this many rows a row's bits depend on no other row, on every device.
inline constexpr int64_t kIndependentExpertRows = 16;

struct ExpertMlpArgs {
  TensorView x;            // bf16 [m, hidden]
  TensorView experts;      // i32 [m, k], each in [0, num_experts)
  TensorView shares;       // f32 [m, k]
  PackedExperts gate_up;   // each [2 * intermediate, hidden]: gate, up
  PackedExperts down;      // each [hidden, intermediate]
  TensorView shared;       // bf16 [m, hidden] or absent: output of an MLP that every row takes
  TensorView shared_gate;  // f32 [m, 1], with `shared`
  ExpertScratch scratch;   // of these sizes; holds anything afterwards
  TensorView out;          // bf16 [m, hidden]
};

// out[i] = sum over slots s, in their order, of shares[i][s] * down_e(swiglu(gate_up_e x[i])),
// where e is experts[i][s]; plus sigmoid(shared_gate[i]) * shared[i]. The products of gate_up and
// of swiglu are bf16, as in a dense MLP; those of down stay f32 until they are summed.
// Shapes: x, out and shared [m, hidden], experts and shares [m, k], shared_gate [m, 1].
// Types: bf16 in and out, weights of any format of `matmul`; the sum is f32, rounded once.
// Aliasing: `out` and the scratch overlap nothing.
// Order: enqueue only; experts are read when the stream reaches the op. Each pair has a place of
// its own, so a row's bits do not depend on other rows; on CUDA as long as there are up to
// kIndependentExpertRows.
// Errors: those of `matmul`; on CUDA kUnsupported, thrown by the call, for sizes that are no
// multiples of 8; an expert that is not there is a failed check, on a
// CPU. Source: Shazeer 2017, arXiv 1701.06538, equation 1.
void expert_mlp(Stream& stream, const ExpertMlpArgs& args);

}  // namespace sluice
