// DeltaNet: a layer of the gated delta rule, whose memory of a sequence is a matrix for each head;
// of Qwen3-Next and Qwen3.5.
//
// A kind of token mixer of a layer (model/layer_spec.h). It has no KV: a state of fixed size
// follows the sequence (state/state_pool.h). Of a verify pass it leaves records of its rows, over
// which `replay` steps again. Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "attention/executor.h"
#include "model/layers/layer_call.h"
#include "model/shard.h"
#include "model/weight_layout.h"
#include "ops/delta/delta.h"
#include "ops/matmul/matmul.h"

namespace sluice {

// The last row up to `end` at which rows of the pass from `begin` on may be cut without dividing a
// chunk (ops/delta/delta.h): there a sequence begins, or is at a multiple of kDeltaChunk. `end` if
// there is none, or if it lies in no span.
int64_t chunk_border(std::span<const PrefillSpan> spans, int64_t begin, int64_t end);

struct DeltaNet {
  DeltaShape shape;
  // The rows of the input projections, and those of the gates, lie by key head, each with those of
  // its value heads, as in Qwen3-Next; else by what they are. GGUF files of it group the gates
  // alone.
  bool is_grouped = false;
  bool groups_gates = false;
  // Of several ranks, whose heads `shape` counts: which of them this is.
  Shard shard;

  struct Weights {
    PackedWeight in;     // [num_channels + v_width, hidden]: q, k, v, z
    PackedWeight gates;  // [2 * num_v_heads, hidden]: b, a
    TensorView taps;     // f32 [num_taps, num_channels]
    TensorView a_log;    // f32 [num_v_heads]
    TensorView dt_bias;  // f32 [num_v_heads]
    TensorView norm;     // f32 [v_dim]
    PackedWeight out;    // [hidden, v_width]
  };

  int64_t in_width() const { return shape.num_channels() + shape.v_width(); }
  int64_t num_parameters(int64_t hidden) const {
    const int64_t vectors =
        shape.num_taps * shape.num_channels() + 2 * shape.num_v_heads + shape.v_dim;
    return hidden * (in_width() + 2 * shape.num_v_heads + shape.v_width()) + vectors;
  }
  int64_t num_active_parameters(int64_t hidden) const { return num_parameters(hidden); }
  // Of the projections, and of the three products of a step with the heads' matrices.
  int64_t products_per_row(int64_t hidden) const {
    return hidden * (in_width() + 2 * shape.num_v_heads + shape.v_width()) +
           3 * shape.num_v_heads * shape.head_elements();
  }
  void describe(std::map<std::string, std::string>& fields) const;
  // Ranks have whole key heads, each with its value heads.
  bool divides(int32_t num_ranks) const { return shape.num_k_heads % num_ranks == 0; }
  void cut(Shard part);

  Weights lay_out(WeightLayout& layout, const std::string& prefix, int64_t hidden) const;
  size_t scratch_bytes(int64_t num_rows, int64_t hidden) const;

  // All of it is in `finish`, which reads the norm's output again: tiles come in the order of rows,
  // and nothing has to be done for all rows at once.
  bool reads_input_twice() const { return true; }
  void begin(const LayerCall&, const RowTile&, const Weights&) const {}
  void attend(const LayerCall&) const {}
  void finish(const LayerCall& call, const RowTile& tile, const Weights& weights) const;

  // Some records of a layer, as the rows of a pass.
  struct Replay {
    Stream& stream;
    StateReplay what;
    DeltaRecords records;
    DeltaStates states;
    Arena scratch;  // scratch_bytes of `max_rows` rows
    int64_t max_rows = 0;
  };
  // Steps over the records again: the states get the bits that a pass over these rows alone would
  // have left.
  void replay(const Replay& replay, const Weights& weights) const;

 private:
  struct Scratch;
  Scratch cut_scratch(Arena& arena, int64_t num_rows) const;
  // Where the ops between the projections of a tile have their states.
  struct Steps {
    DeltaRows rows;
    DeltaStates states;
  };
  static ShortConvArgs conv_of(const Steps& steps, const Scratch& scratch, const Weights& weights);
  static DeltaRuleArgs rule_of(const Steps& steps, const Scratch& scratch, const Weights& weights);
  void lay_out_in(WeightLayout& layout, const std::string& name, int64_t hidden, Weights& w) const;
  void lay_out_gates(WeightLayout& layout, const std::string& name, int64_t hidden,
                     Weights& w) const;
  // The same of rows by key head.
  void lay_out_grouped_in(WeightLayout& layout, const std::string& name, int64_t hidden,
                          Weights& w) const;
  void lay_out_grouped_gates(WeightLayout& layout, const std::string& name, int64_t hidden,
                             Weights& w) const;
  void lay_out_vectors(WeightLayout& layout, const std::string& name, Weights& w) const;
};

}  // namespace sluice
