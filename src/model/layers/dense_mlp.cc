#include "model/layers/dense_mlp.h"

#include "ops/rows/activation.h"

namespace sluice {
namespace {

struct MlpScratch {
  TensorView gate_up;  // bf16 [num_rows, 2 * intermediate]
  TensorView act;      // bf16 [num_rows, intermediate]: silu(gate) * up
};

MlpScratch cut_mlp(Arena& arena, const DenseMlp& mlp, int64_t num_rows) {
  return {.gate_up = arena.tensor(DType::kBF16, {num_rows, 2 * int64_t{mlp.intermediate_size}}),
          .act = arena.tensor(DType::kBF16, {num_rows, mlp.intermediate_size})};
}

}  // namespace

void DenseMlp::describe(std::map<std::string, std::string>& fields) const {
  fields["intermediate_size"] = std::to_string(intermediate_size);
}

// gate_proj and up_proj share one matrix, which gated_product reads in one pass.
DenseMlp::Weights DenseMlp::lay_out(WeightLayout& layout, const std::string& prefix,
                                    int64_t hidden) const {
  Weights w;
  w.gate_up = layout.matrix(2 * int64_t{intermediate_size}, hidden,
                            {prefix + "mlp.gate_proj", prefix + "mlp.up_proj"}, intermediate_size);
  layout.add_rows(prefix + "mlp.gate_proj.weight", w.gate_up, 0, intermediate_size,
                  shard.rows(intermediate_size));
  layout.add_rows(prefix + "mlp.up_proj.weight", w.gate_up, intermediate_size, intermediate_size,
                  shard.rows(intermediate_size));
  w.down = layout.matrix(hidden, intermediate_size, {prefix + "mlp.down_proj"});
  layout.add_rows(prefix + "mlp.down_proj.weight", w.down, 0, hidden,
                  shard.columns(intermediate_size));
  return w;
}

size_t DenseMlp::scratch_bytes(int64_t num_rows, int64_t /*hidden*/) const {
  Arena plan;
  cut_mlp(plan, *this, num_rows);
  return plan.used_bytes();
}

void DenseMlp::enqueue(const LayerCall& call, const RowTile& tile, const Weights& weights) const {
  Arena arena = tile.scratch;
  const MlpScratch scratch = cut_mlp(arena, *this, tile.count);
  gated_product(
      call.stream,
      {.x = tile.x, .weight = weights.gate_up, .gate_up = scratch.gate_up, .out = scratch.act});
  matmul(call.stream, {.x = scratch.act, .weight = weights.down, .out = tile.out});
}

}  // namespace sluice
