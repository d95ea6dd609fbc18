// Selection of tile masks in prefill: records of KV tiles by probe rows, and masks from records.
//
// All policies of sparse prefill score tiles with the same record: R[x, J], the log-sum-exp of
// probe row x over KV tile J. They differ in the probe rows and in what replaces the keys. The
// softmax mass of a tile follows from the records of all tiles, and ops/tiles/tile_rule.h turns
// masses into a mask. A record depends on its own tile alone, so that runs and kernels may be cut
// at any tile border without changing a bit. Everything stays on the device. Tables (batch,
// kv_begin, kv_end, block_table) are written as in ops/attention/attention.h: never by a kernel.
// Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/mix.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention/attention.h"
#include "ops/tiles/tile_rule.h"

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
  // With query_pool_tokens 0 the rows are those of kRows.
  // Cost: 128 / (key_pool_tokens * query_pool_tokens) of kRows with one row; with 0
  // 1 / key_pool_tokens of kRows.
  kPooled,
};

struct TileProbes {
  TileProbeKind kind = TileProbeKind::kRows;
  int32_t rows_per_tile = 4;        // true rows: 1 to 16, a power of two
  int32_t stride = 16;              // kAntidiagonal: 4, 8, 16 or 32
  int32_t key_pool_tokens = 16;     // kPooled: a power of two, 8 to 128
  int32_t query_pool_tokens = 128;  // kPooled: 128, 16 or 1; or 0
  bool pools_maxima = false;        // kPooled

  // Whether the probes are single rows in the places of probe_row.
  constexpr bool are_true_rows() const {
    return kind == TileProbeKind::kRows ||
           (kind == TileProbeKind::kPooled && query_pool_tokens == 0);
  }
};

// Probe rows of a query tile of kMaskTileTokens rows.
int32_t probes_per_tile(const TileProbes& probes);

// Elements of a probe vector: head_dim, or those of the `stride` rows of a cell.
int64_t probe_width(const TileProbes& probes, int64_t head_dim);

// Position of probe `index` of a query tile, of `rows_per_tile` (kRows), before it is clipped to
// the last row there is. Probes ascend and differ between tiles, so that no fixed stride of a text
// escapes all of them.
//
// The low bits of the mixed number of the probe choose a row of the probe's
// part of the tile. rows_per_tile is a power of two, and so is the part.
constexpr int32_t probe_row(int32_t q_tile, int32_t index, int32_t rows_per_tile) {
  const uint32_t x =
      murmur_mix32(static_cast<uint32_t>(q_tile) * 16 + static_cast<uint32_t>(index) + 1);
  const int32_t part = kMaskTileTokens / rows_per_tile;
  return q_tile * kMaskTileTokens + index * part +
         static_cast<int32_t>(x & static_cast<uint32_t>(part - 1));
}

// Rows [first, first + count) of a sequence's rows in the batch, as far as they exist: a window of
// a pass, so that records need not be kept for all of its rows. `first` is a multiple of
// kMaskTileTokens. Results do not depend on how a pass is cut into windows.
struct TileRows {
  int32_t first = 0;
  int32_t count = 0;

  int32_t num_q_tiles() const { return (count + kMaskTileTokens - 1) / kMaskTileTokens; }
};

struct ScoreTilesArgs {
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // of one sequence, whose first_pos is a multiple of kMaskTileTokens
  TileRows rows;
  float scale = 1.0f;      // score = scale * q.k
  KvBlocksView kv;         // a run of keys, as in AttentionArgs
  TensorView kv_begin;     // i32 [1]: multiple of kMaskTileTokens
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]
  TileProbes probes;
  TensorView vectors;  // bf16 [num_q_heads, num_probes, probe_width]: scratch for probe vectors
  TensorView records;  // f32 [num_q_heads, num_probes, num_kv_tiles], natural log
  TileMask visits;     // kRows: the KV tiles that each query tile scores, as in SelectTilesArgs;
                       // absent: all that it sees
};

// records[h, x, J] = ln of the sum over the keys j of tile J that probe x of head h sees of
// exp(score(x, j)), for the tiles of the run; -inf where it sees none, or does not exist. Probe x
// is number x % probes_per_tile of query tile x / probes_per_tile of `rows`. With `visits`, -inf
// for tiles whose bit is not set as well, and for the others the bits that they have without.
// Shapes: num_probes = probes_per_tile * rows.num_q_tiles(); num_kv_tiles covers kv_end;
// num_q_heads is a multiple of num_kv_heads; block_tokens divides kMaskTileTokens or is a multiple
// of it; stride and key_pool_tokens divide block_tokens. Visits: as the mask of
// select_tiles.
// Types: products and sums in f32. Pools are rounded to bf16. kRows: exact queries and keys.
// Aliasing: `vectors` and `records` overlap nothing.
// Order: after the keys and `visits` were written, in stream order; runs in any order.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported unless head_dim is a multiple of 8,
// 128 keys fit shared memory and scale is above 0; an asynchronous error names a KV tile that has
// no records. Source: see TileProbeKind.
void score_tiles(Stream& stream, const ScoreTilesArgs& args);

// Partial sums of a log-sum-exp over records: a warp of a GPU, whole vectors of a CPU.
inline constexpr int32_t kRecordLanes = 32;

// Shares of softmax mass that tiles hold, where other ops stand between records and the mask
// (subtract_columns of ops/tiles/tile_columns.h).
struct TileMasses {
  TensorView lse;     // f32 [num_q_heads, num_probes]: log-sum-exp of a probe's records; not finite
                      // where the probe is not usable
  TensorView masses;  // i32 [num_list_heads, num_q_tiles of `rows`, num_kv_tiles]: of kMassOne
  TensorView column_mass;  // i32 [num_list_heads, num_q_tiles of `rows`]: held by columns

  bool present() const { return masses.present(); }
};

struct TileMassesArgs {
  TensorView records;           // f32 [num_q_heads, num_probes, num_kv_tiles]
  int32_t probes_per_tile = 0;  // num_probes = probes_per_tile * query tiles
  AttentionBatch batch;         // as in score_tiles
  TileRows rows;
  int32_t first_q_tile = 0;  // of the batch
  TileMasses out;
};

// Writes the masses that select_tiles takes from records, and column_mass 0; equal records give
// equal bits on every device. Masses of KV tiles above the diagonal and of query tiles without rows
// are 0; lse of those tiles is not written.
// Shapes: those of TileMasses; num_list_heads divides num_q_heads.
// Types: f32 records and lse, i32 masses.
// Aliasing: `out` overlaps nothing.
// Order: after score_tiles of all runs up to the batch's last row, in stream order.
// Errors: those of every op (ops/ops.h). On CUDA an asynchronous error names a query tile that lies
// beyond the records.
void tile_masses(Stream& stream, const TileMassesArgs& args);

// How a query head attends in a segment of rows, where heads of a list differ.
enum class HeadPattern : int32_t {
  kLines,  // by verticals and tile diagonals (ops/tiles/tile_lines.h)
  kTiles,  // by the tiles of each query tile
};

struct SelectTilesArgs {
  TensorView records;           // f32 [num_q_heads, num_probes, num_kv_tiles]
  int32_t probes_per_tile = 0;  // num_probes = probes_per_tile * query tiles
  AttentionBatch batch;         // as in score_tiles
  TileRows rows;
  int64_t prompt_end = 0;  // tokens of the sequence's whole prompt
  TileRule rule;
  TileMask mask;  // entries of the query tiles of `rows` are written; num_seqs 1, list_heads 1 or
                  // num_kv_heads; first_q_tile is that of the batch
  TensorView counts;  // i64 [3], or absent: KV tiles set, visible and cut by max_tiles, of all list
                      // heads; each call adds its own
  // Absent, or what tile_masses made of the records, less what columns hold: then `records` and
  // probes_per_tile are not read.
  TileMasses masses;
  // Absent, or i32 [num_q_heads, segments of `rows`], a HeadPattern each: then only heads of kTiles
  // count, and the mask keeps the bits that it has, those of select_diagonals.
  TensorView patterns;
  int32_t segment_tokens = 0;  // of patterns; `rows` begin at a segment
};

// Writes the tiles that the rule takes for every list head and query tile of `rows`. The mass of
// tile J is the mean over the tile's usable probes and the heads of the list of
// exp(R[x, J] - L[x]), in f32, where L[x] is the log-sum-exp of R[x, J] over J; a probe whose L is
// not finite is not usable. Masses are rounded down to integers (kMassOne), NaN counts as 0, and
// take_tiles of ops/tiles/tile_rule.h decides. Bits of query tiles without rows, and of KV tiles
// above the diagonal, are 0. With patterns the tiles are added to the mask, and to the counts those
// that were not set; a list without heads of kTiles in the segment keeps its bits.
//
// Equal records give equal bits on every device, because the arithmetic is fixed: exp and ln are
// those of ops/portable_math.h. L is the largest record plus ln of a sum over kRecordLanes lanes:
// lane l adds exp(R - largest) of tiles l, l + kRecordLanes, ... in ascending order, then the upper
// half of the lanes is added to the lower half until one is left. The mean adds probes in ascending
// order, heads outermost, and divides by the number of usable probes.
// Shapes: num_kv_tiles at most 32 * num_words; num_probes = probes_per_tile * rows.num_q_tiles();
// the mask's num_q_tiles covers `rows`. Patterns need records; segment_tokens is a multiple of
// kMaskTileTokens.
// Types: f32 records, i32 words of bits, i64 counts.
// Aliasing: mask and counts overlap nothing.
// Order: after score_tiles of all runs up to the batch's last row, in stream order.
// Errors: those of every op (ops/ops.h). On CUDA: kUnsupported for more KV tiles than shared memory
// has masses of, more than 3 million tokens on every GPU; an asynchronous error names a query tile
// that lies beyond the records.
// Source: ops/tiles/tile_rule.h.
void select_tiles(Stream& stream, const SelectTilesArgs& args);

// Adds tiles to a mask, for lists whose query heads attend in several ways: some have sinks and a
// window of their own, or choose tiles by other scores. Such a list attends to the union.
struct AddTilesArgs {
  // i32 [num_list_heads, 3]: sink tokens, recent tokens, and 1 if tiles of `other` are added, else
  // 0. Recent tokens -1: no window, not even the diagonal.
  TensorView lists;
  TileMask other;        // absent, or of the shape of `mask`, with the same first_q_tile
  AttentionBatch batch;  // as in score_tiles
  TileRows rows;
  TileMask mask;      // entries of the query tiles of `rows` change
  TensorView counts;  // i64 [3]: KV tiles set, visible and cut by a budget; the first grows by
                      // those that were not set before
};

// Sets, in the entries of each list: the KV tiles that hold one of the first sink tokens, those
// that hold a token of [first row - recent tokens, last row], and the bits of `other` for a list
// that takes them; of the tiles up to the diagonal. Entries of query tiles without rows stay.
// Shapes: the mask's num_q_tiles covers `rows`; num_words covers their KV tiles.
// Types: i32 words of bits, i64 counts.
// Aliasing: mask and counts overlap nothing.
// Order: after what writes the mask and `other`, in stream order.
// Errors: those of every op (ops/ops.h).
void add_tiles(Stream& stream, const AddTilesArgs& args);

// Whether a list with these sinks and this window attends to KV tile `kv_tile`, up to the diagonal.
constexpr bool is_added(int32_t sink_tokens, int32_t recent_tokens, int32_t q_tile,
                        int32_t kv_tile) {
  const int64_t first_token = int64_t{kv_tile} * kMaskTileTokens;
  const int64_t first_row = int64_t{q_tile} * kMaskTileTokens;
  return first_token < sink_tokens ||
         (recent_tokens >= 0 && first_token + kMaskTileTokens > first_row - recent_tokens);
}

}  // namespace sluice
