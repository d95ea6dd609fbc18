// RecallRig: one layer's queries and keys on a CPU device, with the ops of sparse prefill.
//
// Used by `sluice-lab recall`: the activations may come from any device, the estimators run on
// the CPU device by the ops of the engine, and true masses are computed from its matrix products.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attention/policy_pair.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "device/host/thread_team.h"
#include "lab/recall/recall_choices.h"
#include "lab/recall/recall_columns.h"
#include "ops/matmul/matmul.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::lab {

// Sizes that all layers share.
struct RecallShape {
  int64_t num_tokens = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // of q and k as stored, padding included
  float scale = 1;       // score = scale * q.k

  int32_t group() const { return num_q_heads / num_kv_heads; }
};

class RecallRig {
 public:
  // num_threads: at least 1. Memory: the queries once and the keys three times in bf16, values
  // included, and in f32 the scores of one query tile with all keys. Errors: kDoesNotFit.
  RecallRig(const RecallShape& shape, int num_threads);

  const RecallShape& shape() const { return shape_; }

  // Takes the layer's queries [num_tokens, num_q_heads, head_dim] and keys [num_tokens,
  // num_kv_heads, head_dim], after rope; values are rounded to bf16, which those of the engine are.
  // REQUIRES: as many values as the shape has.
  void load(std::span<const float> q, std::span<const float> k);

  // The mean mass of each token for the rows of a query tile, of each query head. Rows that are not
  // finite do not count; a head without any other has zeros.
  // REQUIRES of both: all 128 rows of the query tile exist.
  std::vector<std::vector<double>> token_masses(int32_t q_tile);

  // What an estimator takes for a query tile, by each rule: [rule][kv_head]. Tiles by score_tiles
  // and select_tiles, columns by the ops of tile_columns.h, verticals and diagonals by those of
  // tile_lines.h. The rows of a segment choose columns, as far as the text has them.
  using Selections = std::vector<std::vector<RecallChoice>>;
  Selections select(const Estimator& estimator, int32_t q_tile, std::span<const RecallRule> rules);

  // What the prefill policy selects for all rows, as the engine asks it: one window after the
  // other, each with all keys in one run. `layer` is that of the activations. The selection lies in
  // the memory of `policies`, which this initializes. Page lists are those of a policy without
  // masks. REQUIRES: `policies` are not initialized. Errors: those of the policy.
  Selection select(PolicyPair& policies, int32_t layer);

 private:
  SelectInput select_input(int32_t layer);
  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims);
  void fill_blocks(std::span<const float> k);
  void pack_keys(std::span<const float> k);
  void multiply(int32_t q_tile);
  std::vector<double> head_masses(int32_t q_head, int32_t q_tile) const;
  // A call's rows are those of query tiles [first, end), as far as the text has them.
  struct QueryTiles {
    int32_t first = 0;
    int32_t end = 0;
    int32_t count() const { return end - first; }
  };
  QueryTiles segment_of(const Estimator& estimator, int32_t q_tile) const;
  int64_t end_pos(const QueryTiles& tiles) const;
  ScoreTilesArgs score_call(const TileProbes& probes, const QueryTiles& tiles);
  TileMask mask_of(const QueryTiles& tiles) const;
  int64_t prompt_end(const QueryTiles& tiles, const TileRule& rule) const;
  // select_tiles into the mask that comes back; by `masses` if there are some.
  TileMask run_rule(const ScoreTilesArgs& scored, const TileRule& rule, const QueryTiles& tiles,
                    const TileMasses& masses = {});
  std::vector<RecallChoice> read(const TileMask& mask, const TileColumns& columns, int32_t q_tile);

  Selections select_by_tiles(const Estimator& estimator, int32_t q_tile,
                             std::span<const RecallRule> rules);
  Selections select_with_columns(const Estimator& estimator, int32_t q_tile,
                                 std::span<const RecallRule> rules);
  Selections select_verticals(const Estimator& estimator, int32_t q_tile,
                              std::span<const RecallRule> rules);

  RecallShape shape_;
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
  ThreadTeam team_;  // for what is no op

  TensorView q_;                      // bf16 [num_tokens, num_q_heads, head_dim]
  TensorView head_rows_;              // bf16 [num_q_heads, 128, head_dim]: rows of a query tile
  TensorView scores_;                 // f32 [num_q_heads, 128, num_tokens], without the scale
  std::vector<PackedWeight> packed_;  // the keys of each KV head
  KvBlocksView blocks_;
  TensorView block_table_, row_begin_, first_pos_, kv_begin_,
      kv_end_;                    // as in ops/attention/attention.h
  TensorView vectors_, records_;  // room for the estimator with the most probes
  TensorView bits_;               // of the masks of a segment
  std::optional<RecallColumnOps> columns_;
};

}  // namespace sluice::lab
