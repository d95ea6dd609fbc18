// ExpertMlp: a mixture of experts. A router chooses some of many MLPs for each row, and their
// outputs are summed by its probabilities; of Qwen3-MoE, Qwen2-MoE and Mixtral.
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
#include "ops/experts/experts.h"
#include "ops/matmul/matmul.h"

namespace sluice {

// How a family names the tensors of a layer: "mlp.gate", "mlp.experts.3.gate_proj"; or
// "block_sparse_moe.gate", "block_sparse_moe.experts.3.w1".
enum class ExpertNames { kQwen, kMixtral };

struct ExpertMlp {
  int32_t num_experts = 0;
  int32_t num_chosen = 0;         // of them for a row, at most num_experts
  int32_t intermediate_size = 0;  // of each expert
  bool normalize = false;         // the chosen experts' probabilities are divided by their sum
  ExpertNames names = ExpertNames::kQwen;
  int32_t shared_size = 0;  // of an MLP that every row takes, Qwen2-MoE; 0: there is none
  Shard shard;              // of several ranks, which have channels of every expert
  // Rows of one expert_mlp: its scratch is num_chosen rows for each. With 512 rows of 128 experts,
  // 8 of them chosen, an expert has 32 rows, for which a CPU's products are bound by arithmetic.
  int64_t rows_at_once = 512;

  struct Weights {
    PackedWeight router;    // [num_experts, hidden], always bf16
    PackedExperts gate_up;  // each [2 * intermediate, hidden]: gate, up
    PackedExperts down;     // each [hidden, intermediate]
    // With a shared MLP.
    PackedWeight shared_gate_up;  // [2 * shared_size, hidden]
    PackedWeight shared_down;     // [hidden, shared_size]
    PackedWeight shared_gate;     // [1, hidden], bf16
  };

  int64_t num_parameters(int64_t hidden) const { return parameters_of(hidden, num_experts); }
  int64_t num_active_parameters(int64_t hidden) const { return parameters_of(hidden, num_chosen); }
  int64_t products_per_row(int64_t hidden) const { return num_active_parameters(hidden); }
  void describe(std::map<std::string, std::string>& fields) const;
  // Of each expert, and of the shared MLP.
  std::vector<int32_t> hidden_channels() const {
    if (shared_size == 0) return {intermediate_size};
    return {intermediate_size, shared_size};
  }
  void cut(Shard part) {
    shard = part;
    intermediate_size /= part.num_ranks;
    shared_size /= part.num_ranks;
  }

  Weights lay_out(WeightLayout& layout, const std::string& prefix, int64_t hidden) const;
  size_t scratch_bytes(int64_t num_rows, int64_t hidden) const;

  // out = sum over the chosen experts of share * down (silu(gate x) * up x). Taps the router's
  // probabilities for all experts ("router") and the indices of the chosen ones ("experts").
  // With a shared MLP its output is added, times the sigmoid of a gate. Of several ranks the sum
  // of their outs.
  void enqueue(const LayerCall& call, const RowTile& tile, const Weights& weights) const;

 private:
  void lay_out_shared(WeightLayout& layout, const std::string& prefix, int64_t hidden,
                      Weights& w) const;
  int64_t parameters_of(int64_t hidden, int64_t count) const {
    const int64_t shared = shared_size == 0 ? 0 : hidden * (3 * int64_t{shared_size} + 1);
    return hidden * num_experts + count * 3 * hidden * intermediate_size + shared;
  }
};

}  // namespace sluice
