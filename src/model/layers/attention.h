// Attention: softmax attention over KV with grouped query heads and rotary positions.
//
// A kind of token mixer of a layer (model/layer_spec.h). Families differ in the optional weights
// alone. Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "model/head_padding.h"
#include "model/layers/layer_call.h"
#include "model/shard.h"
#include "model/weight_layout.h"
#include "ops/matmul/matmul.h"

namespace sluice {

struct Attention {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads
  int32_t head_dim = 0;   // even, at most 256; num_q_heads * head_dim may differ from hidden_size
  bool qkv_bias = false;  // q, k and v projections have a bias
  bool o_bias = false;    // the output projection has one
  bool qk_norm = false;   // RMSNorm of each q and k head before rope
  float norm_offset = 0.0f;  // added to the weights of these norms
  int32_t rotary_dim = 0;    // channels of a head that rotate, the first ones; 0: all
  bool output_gate = false;  // the output is multiplied by the sigmoid of a projection
  // Of several ranks, whose heads the numbers above count: which of them this is, of query heads
  // and of KV heads; neighbours may have the same KV head.
  Shard shard;
  Shard kv_shard;

  // Views are empty where the family has no such tensor. `padded` is padded_head_dim().
  struct Weights {
    PackedWeight qkv;     // [(num_q_heads + 2 * num_kv_heads) * padded, hidden]: q, k, v
    TensorView qkv_bias;  // bf16 [same rows], Qwen2
    TensorView q_norm;    // bf16 [padded], Qwen3
    TensorView k_norm;    // bf16 [padded], Qwen3
    PackedWeight o;       // [hidden, num_q_heads * padded]
    TensorView o_bias;    // bf16 [hidden], Llama with attention_bias
    PackedWeight gate;    // [num_q_heads * padded, hidden], with output_gate
  };

  bool operator==(const Attention&) const = default;

  // Channels of a head in memory: head_dim rounded up, since kernels and KV blocks take whole
  // vectors of 16. The added channels are zeros at the end of each half of the head
  // (model/head_padding.h).
  int32_t padded_head_dim() const { return (head_dim + 15) / 16 * 16; }
  HeadPadding padding() const {
    return {.head_dim = head_dim, .padded_head_dim = padded_head_dim()};
  }
  int64_t q_width() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_width() const { return 2 * int64_t{num_kv_heads} * head_dim; }  // of k and v

  // Of q and k, whose channels rotate; `padding` is that of all other heads.
  HeadPadding rotated_padding() const {
    return {.head_dim = head_dim, .padded_head_dim = padded_head_dim(), .rotary_dim = rotary_dim};
  }
  // Whether `finish` reads RowTile::x again.
  bool reads_input_twice() const { return output_gate; }

  int64_t num_parameters(int64_t hidden) const {
    int64_t count = hidden * (q_width() + kv_width()) + q_width() * hidden;  // q, k, v and o
    if (output_gate) count += hidden * q_width();
    if (qkv_bias) count += q_width() + kv_width();
    if (o_bias) count += hidden;
    if (qk_norm) count += 2 * int64_t{head_dim};
    return count;
  }
  int64_t num_active_parameters(int64_t hidden) const { return num_parameters(hidden); }
  int64_t products_per_row(int64_t hidden) const {
    return hidden * ((output_gate ? 3 : 2) * q_width() + kv_width());
  }
  // Multiply-adds for a row and a token that it attends to: q k^T and p v.
  int64_t products_per_pair() const { return 2 * q_width(); }
  void describe(std::map<std::string, std::string>& fields) const;

  Weights lay_out(WeightLayout& layout, const std::string& prefix, int64_t hidden) const;
  size_t scratch_bytes(int64_t num_rows, int64_t hidden) const;

  // Before attention, for one tile: q k v, rope, KV write. Queries go to the buffer of all rows.
  void begin(const LayerCall& call, const RowTile& tile, const Weights& weights) const;
  // Attention of all rows. The output overwrites the queries, so no second buffer of that size
  // exists.
  void attend(const LayerCall& call) const;
  // After attention, for one tile: output projection.
  void finish(const LayerCall& call, const RowTile& tile, const Weights& weights) const;

 private:
  void lay_out_q(WeightLayout& layout, const std::string& name, int64_t hidden, Weights& w) const;
  void lay_out_qkv_bias(WeightLayout& layout, const std::string& name, Weights& w) const;
  void rotate_zones(const LayerCall& call, const RowTile& tile, const Weights& weights,
                    const TensorView& qkv) const;
};

}  // namespace sluice
