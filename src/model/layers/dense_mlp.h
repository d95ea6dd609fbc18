// DenseMlp: an MLP whose hidden channels are gated by SiLU (SwiGLU), of Qwen and Llama.
//
// A kind of MLP of a layer (model/layer_spec.h). Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/layers/layer_call.h"
#include "model/shard.h"
#include "model/weight_layout.h"
#include "ops/matmul/matmul.h"

namespace sluice {

struct DenseMlp {
  int32_t intermediate_size = 0;
  Shard shard;  // of several ranks, whose channels intermediate_size counts

  struct Weights {
    PackedWeight gate_up;  // [2 * intermediate, hidden]: gate, up
    PackedWeight down;     // [hidden, intermediate]
  };

  int64_t num_parameters(int64_t hidden) const { return 3 * hidden * intermediate_size; }
  int64_t num_active_parameters(int64_t hidden) const { return num_parameters(hidden); }
  int64_t products_per_row(int64_t hidden) const { return 3 * hidden * intermediate_size; }
  void describe(std::map<std::string, std::string>& fields) const;
  std::vector<int32_t> hidden_channels() const { return {intermediate_size}; }
  void cut(Shard part) {
    shard = part;
    intermediate_size /= part.num_ranks;
  }

  Weights lay_out(WeightLayout& layout, const std::string& prefix, int64_t hidden) const;
  size_t scratch_bytes(int64_t num_rows, int64_t hidden) const;

  // out = down (silu(gate x) * up x). Of several ranks the sum of their outs.
  void enqueue(const LayerCall& call, const RowTile& tile, const Weights& weights) const;
};

}  // namespace sluice
