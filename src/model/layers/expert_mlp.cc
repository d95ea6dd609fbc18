#include "model/layers/expert_mlp.h"

#include <algorithm>

#include <fmt/format.h>

namespace sluice {
namespace {

// Rows of one expert_mlp: its scratch is k rows for each. With 512 rows of 128 experts, 8 of them
// chosen, an expert has 32 rows, for which a CPU's products are bound by arithmetic.
constexpr int64_t kMaxRowsAtOnce = 512;

// Working memory of a layer, for up to kMaxRowsAtOnce rows.
struct MixtureScratch {
  TensorView scores;   // f32 [num_rows, num_experts]
  TensorView experts;  // i32 [num_rows, num_chosen]
  TensorView shares;   // f32 [num_rows, num_chosen]
  ExpertScratch mlp;
};

MixtureScratch cut_mixture(Arena& arena, const ExpertMlp& mlp, int64_t num_rows, int64_t hidden) {
  return {.scores = arena.tensor(DType::kF32, {num_rows, mlp.num_experts}),
          .experts = arena.tensor(DType::kI32, {num_rows, mlp.num_chosen}),
          .shares = arena.tensor(DType::kF32, {num_rows, mlp.num_chosen}),
          .mlp = cut_expert_scratch(arena, {.num_rows = num_rows,
                                            .num_slots = mlp.num_chosen,
                                            .num_experts = mlp.num_experts,
                                            .hidden = hidden,
                                            .intermediate = mlp.intermediate_size})};
}

// The parts of tensor names that families spell differently.
struct Names {
  const char* block;
  const char* gate;
  const char* up;
  const char* down;
};

Names names_of(ExpertNames names) {
  if (names == ExpertNames::kMixtral) return {"block_sparse_moe.", "w1", "w3", "w2"};
  return {"mlp.", "gate_proj", "up_proj", "down_proj"};
}

}  // namespace

void ExpertMlp::describe(std::map<std::string, std::string>& fields) const {
  fields["num_experts"] = std::to_string(num_experts);
  fields["num_chosen_experts"] = std::to_string(num_chosen);
  fields["expert_intermediate_size"] = std::to_string(intermediate_size);
  fields["experts_normalize"] = std::to_string(normalize);
}

// A file has three tensors for each expert, or two for all of them, as transformers 5 keeps them.
ExpertMlp::Weights ExpertMlp::lay_out(WeightLayout& layout, const std::string& prefix,
                                      int64_t hidden) const {
  const Names own = names_of(names);
  const std::string block = prefix + own.block;
  const std::string experts = block + "experts.";
  Weights w;
  w.router = layout.matrix(num_experts, hidden);
  layout.add_rows(block + "gate.weight", w.router, 0, num_experts);
  w.gate_up = layout.experts(num_experts, 2 * int64_t{intermediate_size}, hidden, experts,
                             {own.gate, own.up});
  w.down = layout.experts(num_experts, hidden, intermediate_size, experts, {own.down});
  const double share = static_cast<double>(num_chosen) / num_experts;
  for (int32_t e = 0; e < num_experts; ++e) {
    const auto add = [&](const char* name, const PackedExperts& all, int64_t row_begin,
                         int64_t num_rows, const char* stack) {
      layout.add_expert_rows({.name = fmt::format("{}{}.{}.weight", experts, e, name),
                              .stack_name = experts + stack,
                              .expert = e,
                              .row_begin = row_begin,
                              .num_rows = num_rows,
                              .active_share = share},
                             all);
    };
    add(own.gate, w.gate_up, 0, intermediate_size, "gate_up_proj");
    add(own.up, w.gate_up, intermediate_size, intermediate_size, "gate_up_proj");
    add(own.down, w.down, 0, hidden, "down_proj");
  }
  return w;
}

size_t ExpertMlp::scratch_bytes(int64_t num_rows, int64_t hidden) const {
  Arena plan;
  cut_mixture(plan, *this, std::min(num_rows, kMaxRowsAtOnce), hidden);
  return plan.used_bytes();
}

// Parts reuse one scratch, since the stream runs them one after the other.
void ExpertMlp::enqueue(const LayerCall& call, const RowTile& tile, const Weights& weights) const {
  for (int64_t begin = 0; begin < tile.count; begin += kMaxRowsAtOnce) {
    const int64_t count = std::min(kMaxRowsAtOnce, tile.count - begin);
    const TensorView x = tile.x.rows(begin, count);
    Arena arena = tile.scratch;
    const MixtureScratch scratch = cut_mixture(arena, *this, count, x.dim(1));
    matmul(call.stream, {.x = x, .weight = weights.router, .bias = {}, .out = scratch.scores});
    route_experts(call.stream, {.scores = scratch.scores,
                                .experts = scratch.experts,
                                .shares = scratch.shares,
                                .normalize = normalize});
    call.tap("router", tile.begin + begin, scratch.scores);
    call.tap("experts", tile.begin + begin, scratch.experts);
    expert_mlp(call.stream, {.x = x,
                             .experts = scratch.experts,
                             .shares = scratch.shares,
                             .gate_up = weights.gate_up,
                             .down = weights.down,
                             .scratch = scratch.mlp,
                             .out = tile.out.rows(begin, count)});
  }
}

}  // namespace sluice
