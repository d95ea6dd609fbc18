// Tiles added to a mask, for lists whose query heads attend in several ways.
//
// The masks of select_diagonals (ops/tile_lines.h) follow one rule for all lists. Where some heads
// have sinks and a window of their own, or choose tiles by other scores, their list attends to the
// union. Used by the policy minference with a profile of heads. Thread rule: enqueue only.
#pragma once

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/attention.h"
#include "ops/tile_selection.h"

namespace sluice {

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
