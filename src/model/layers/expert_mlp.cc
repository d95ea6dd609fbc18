#include "model/layers/expert_mlp.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/experts/host_experts.h"
#include "ops/rows/activation.h"

namespace sluice {
namespace {

// Working memory of a layer, for up to rows_at_once rows.
struct MixtureScratch {
  TensorView scores;   // f32 [num_rows, num_experts]
  TensorView experts;  // i32 [num_rows, num_chosen]
  TensorView shares;   // f32 [num_rows, num_chosen]
  ExpertScratch mlp;
  // Of a shared MLP, else empty.
  TensorView shared_gate_up;  // bf16 [num_rows, 2 * shared_size]
  TensorView shared_act;      // bf16 [num_rows, shared_size]
  TensorView shared;          // bf16 [num_rows, hidden]
  TensorView shared_gate;     // f32 [num_rows, 1]
};

// num_sources: experts, or places of a cache of them, at most as many.
MixtureScratch cut_mixture(Arena& arena, const ExpertMlp& mlp, int64_t num_rows, int64_t hidden,
                           int64_t num_sources) {
  MixtureScratch scratch{.scores = arena.tensor(DType::kF32, {num_rows, mlp.num_experts}),
                         .experts = arena.tensor(DType::kI32, {num_rows, mlp.num_chosen}),
                         .shares = arena.tensor(DType::kF32, {num_rows, mlp.num_chosen}),
                         .mlp = cut_expert_scratch(arena, {.num_rows = num_rows,
                                                           .num_slots = mlp.num_chosen,
                                                           .num_experts = num_sources,
                                                           .hidden = hidden,
                                                           .intermediate = mlp.intermediate_size}),
                         .shared_gate_up = {},
                         .shared_act = {},
                         .shared = {},
                         .shared_gate = {}};
  if (mlp.shared_size == 0) return scratch;
  scratch.shared_gate_up = arena.tensor(DType::kBF16, {num_rows, 2 * int64_t{mlp.shared_size}});
  scratch.shared_act = arena.tensor(DType::kBF16, {num_rows, mlp.shared_size});
  scratch.shared = arena.tensor(DType::kBF16, {num_rows, hidden});
  scratch.shared_gate = arena.tensor(DType::kF32, {num_rows, 1});
  return scratch;
}

// The MLP that every row takes, and its gate.
void enqueue_shared(Stream& stream, const TensorView& x, const ExpertMlp::Weights& weights,
                    const MixtureScratch& scratch) {
  gated_product(stream, {.x = x,
                         .weight = weights.shared_gate_up,
                         .gate_up = scratch.shared_gate_up,
                         .out = scratch.shared_act});
  matmul(
      stream,
      {.x = scratch.shared_act, .weight = weights.shared_down, .bias = {}, .out = scratch.shared});
  matmul(stream, {.x = x, .weight = weights.shared_gate, .bias = {}, .out = scratch.shared_gate});
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
  fields["shared_expert_size"] = std::to_string(shared_size);
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
                             {own.gate, own.up}, intermediate_size);
  w.down = layout.experts(num_experts, hidden, intermediate_size, experts, {own.down});
  const double share = static_cast<double>(num_chosen) / num_experts;
  const TensorSlice rows = shard.rows(intermediate_size);
  const TensorSlice columns = shard.columns(intermediate_size);
  for (int32_t e = 0; e < num_experts; ++e) {
    const auto add = [&](const char* name, const PackedExperts& all, int64_t row_begin,
                         int64_t num_rows, const char* stack, const TensorSlice& slice) {
      layout.add_expert_rows({.name = fmt::format("{}{}.{}.weight", experts, e, name),
                              .stack_name = experts + stack,
                              .expert = e,
                              .row_begin = row_begin,
                              .num_rows = num_rows,
                              .active_share = share,
                              .slice = slice},
                             all);
    };
    add(own.gate, w.gate_up, 0, intermediate_size, "gate_up_proj", rows);
    add(own.up, w.gate_up, intermediate_size, intermediate_size, "gate_up_proj", rows);
    add(own.down, w.down, 0, hidden, "down_proj", columns);
  }
  if (shared_size > 0) lay_out_shared(layout, block + "shared_expert", hidden, w);
  return w;
}

void ExpertMlp::lay_out_shared(WeightLayout& layout, const std::string& prefix, int64_t hidden,
                               Weights& w) const {
  const std::string gate = prefix + ".gate_proj", up = prefix + ".up_proj";
  const std::string down = prefix + ".down_proj";
  w.shared_gate_up = layout.matrix(2 * int64_t{shared_size}, hidden, {gate, up}, shared_size);
  layout.add_rows(gate + ".weight", w.shared_gate_up, 0, shared_size, shard.rows(shared_size));
  layout.add_rows(up + ".weight", w.shared_gate_up, shared_size, shared_size,
                  shard.rows(shared_size));
  w.shared_down = layout.matrix(hidden, shared_size, {down});
  layout.add_rows(down + ".weight", w.shared_down, 0, hidden, shard.columns(shared_size));
  w.shared_gate = layout.matrix(1, hidden);
  layout.add_rows(prefix + "_gate.weight", w.shared_gate, 0, 1);
}

size_t ExpertMlp::scratch_bytes(int64_t num_rows, int64_t hidden) const {
  Arena plan;
  cut_mixture(plan, *this, std::min(num_rows, rows_at_once), hidden, num_experts);
  return plan.used_bytes();
}

// Parts reuse one scratch, since the stream runs them one after the other. They are even: a short
// last part would take the kernels of few rows, whose bits are others.
void ExpertMlp::enqueue(const LayerCall& call, const RowTile& tile, const Weights& weights) const {
  const int64_t num_sources = call.experts ? call.experts->num_sources(call.layer) : num_experts;
  const int64_t most_rows =
      call.experts ? std::min(rows_at_once, call.experts->rows_at_once()) : rows_at_once;
  const int64_t num_parts = (tile.count + most_rows - 1) / most_rows;
  const int64_t part_rows = (tile.count + num_parts - 1) / num_parts;
  for (int64_t begin = 0; begin < tile.count; begin += part_rows) {
    const int64_t count = std::min(part_rows, tile.count - begin);
    const TensorView x = tile.x.rows(begin, count);
    Arena arena = tile.scratch;
    const MixtureScratch scratch = cut_mixture(arena, *this, count, x.dim(1), num_sources);
    route_experts(call.stream, {.x = x,
                                .router = weights.router,
                                .scores = scratch.scores,
                                .experts = scratch.experts,
                                .shares = scratch.shares,
                                .normalize = normalize});
    call.tap("router", tile.begin + begin, scratch.scores);
    call.tap("experts", tile.begin + begin, scratch.experts);
    if (shared_size > 0) enqueue_shared(call.stream, x, weights, scratch);
    const ExpertSource source = call.experts
                                    ? call.experts->provide(call.layer, scratch.experts)
                                    : ExpertSource{scratch.experts, weights.gate_up, weights.down};
    expert_mlp(call.stream, {.x = x,
                             .experts = source.experts,
                             .shares = scratch.shares,
                             .gate_up = source.gate_up,
                             .down = source.down,
                             .shared = scratch.shared,
                             .shared_gate = scratch.shared_gate,
                             .scratch = scratch.mlp,
                             .out = tile.out.rows(begin, count)});
  }
}

}  // namespace sluice
