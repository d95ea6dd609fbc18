// Records of KV tiles for the selection of tile masks: log-sum-exps of probe rows.
//
// All policies of sparse prefill score tiles with the same record: R[x, J], the log-sum-exp of
// probe row x over KV tile J. They differ in the probe rows and in what replaces the keys. The
// softmax mass of a tile follows from the records of all tiles, and ops/tile_rule.h turns masses
// into a mask. A record depends on its own tile alone, so that runs and kernels may be cut at any
// tile border without changing a bit. Only the double-precision reference computes records so far.
// Thread rule: plain values, pure functions.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "ops/attention.h"

namespace sluice {

enum class TileProbeKind {
  // True rows: `rows_per_tile` of each query tile, one in every 128 / rows_per_tile rows, chosen by
  // a fixed hash (probe_row). Their scores with the true keys are exact.
  // Cost: rows_per_tile / 256 of dense attention's products.
  kRows,
  // Cells of `stride` rows and keys: cell (m, c) is scale / stride times the sum over t < stride of
  // q[m stride + stride - 1 - t] . k[c stride + t]; rows and keys that do not exist add 0. A row m
  // sees cells c <= m. Signed products can cancel.
  // Cost: 1 / (2 stride). Source: Xu et al. 2025, arXiv 2503.16428 (XAttention).
  kAntidiagonal,
  // Pools: a row is the mean (or the channel-wise maximum) of `query_pool_tokens` rows, a key that
  // of `key_pool_tokens` keys, and its score has ln of the visible tokens of the pool added. Pools
  // are made of the tokens that exist. A token is visible up to the last row of the query pool.
  // Cost: 128 / (key_pool_tokens * query_pool_tokens) of kRows with one row.
  kPooled,
};

struct TileProbes {
  TileProbeKind kind = TileProbeKind::kRows;
  int32_t rows_per_tile = 4;        // kRows: 1 to 16, a power of two
  int32_t stride = 16;              // kAntidiagonal: 4, 8, 16 or 32
  int32_t key_pool_tokens = 16;     // kPooled: a power of two, 8 to 128
  int32_t query_pool_tokens = 128;  // kPooled: 128, 16 or 1
  bool pools_maxima = false;        // kPooled
};

// Probe rows of a query tile of kMaskTileTokens rows.
int32_t probes_per_tile(const TileProbes& probes);

// Position of probe `index` of a query tile, of `rows_per_tile` (kRows), before it is clipped to
// the last row there is. Probes ascend and differ between tiles, so that no fixed stride of a text
// escapes all of them.
int32_t probe_row(int32_t q_tile, int32_t index, int32_t rows_per_tile);

struct ScoreTilesArgs {
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // rows of one sequence; its first_pos is a multiple of kMaskTileTokens
  float scale = 1.0f;
  KvBlocksView kv;         // a run of keys, as in AttentionArgs
  TensorView kv_begin;     // i32 [1]: multiple of kMaskTileTokens
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
  TileProbes probes;
  // f32 [num_q_heads, num_q_tiles * probes_per_tile, num_kv_tiles], natural log. Those of tiles of
  // the run are written; -inf where the probe sees nothing of the tile.
  TensorView records;
};

}  // namespace sluice
