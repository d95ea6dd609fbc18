// Columns beside a tile mask in prefill attention: which tiles of columns a tile of rows visits,
// and which of their columns each row sees.
//
// Used by both prefill kernels. find_columns (attention/prefill/columns.h) has decided before, for
// each query tile, which columns its mask and its last row leave; what remains for a row is a
// comparison of positions. Thread rule: device code.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/prefill/set_tiles.cuh"

namespace sluice::cuda {

// Columns of one KV tile of a kernel: a tile of kMaskTileTokens columns, or a part of it.
struct ColumnPart {
  int32_t begin = 0;  // its first column in the segment
  int32_t tile = 0;   // which of the visited tiles it is in
  int32_t first = 0;  // its first column in that tile
};

// The tiles of kMaskTileTokens columns that a tile of rows visits.
class ColumnTiles {
 public:
  __device__ ColumnTiles(const PrefillParams& p, const PrefillMask& mask,
                         const PrefillColumns& columns, const PrefillTile& tile) {
    if (tile.first_row >= tile.num_rows) return;
    const int64_t entry = mask_entry(p, mask, tile);
    const int64_t first = entry * columns.max_visits;
    count_ = columns.num_tiles[entry];
    zone_begins_ = columns.zone_begins + 2 * entry;
    tiles_ = columns.tiles + first;
    kept_ = columns.kept + first;
    segment_ =
        tile.position(tile.first_row, p.group) / columns.segment_tokens - columns.first_segment;
    const int64_t list = static_cast<int64_t>(list_head(mask, tile)) * columns.num_segments;
    positions_ = columns.positions + (list + segment_) * columns.max_columns;
  }

  // Number of parts of kTokens columns.
  template <int kTokens>
  __device__ int32_t num_parts() const {
    return count_ * (kMaskTileTokens / kTokens);
  }
  __device__ int32_t segment() const { return segment_; }
  // Columns that are visited before those of the chunk before the rows' own, and before those of
  // their own, as if tiles lay side by side. REQUIRES: there are visits.
  __device__ int32_t before_at() const { return zone_begins_[0] * kMaskTileTokens; }
  __device__ int32_t own_at() const { return zone_begins_[1] * kMaskTileTokens; }

  // A part of a tile, in a kernel with tiles of kTokens: the part-th of the walk.
  template <int kTokens>
  __device__ ColumnPart part(int32_t index) const {
    constexpr int32_t kParts = kMaskTileTokens / kTokens;
    const int32_t first = index % kParts * kTokens;
    return {.begin = tiles_[index / kParts] * kMaskTileTokens + first,
            .tile = index / kParts,
            .first = first};
  }

  // Gives scores of columns of the part that a row does not see the value -inf. `rows.limit` is one
  // past the row's position. Positions are read through the L1 cache, which the warps of the CTA
  // share.
  template <int kTokens>
  __device__ __forceinline__ void mask_scores(const ColumnPart& part, const RowPair& rows,
                                              int32_t lane, float (&s)[kTokens / 2]) const {
    const int32_t* positions = positions_ + part.begin + 2 * (lane % 4);
    const auto* kept = reinterpret_cast<const uint32_t*>(kept_ + part.tile);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const int2 pair = *reinterpret_cast<const int2*>(positions + 8 * j);
      const int32_t column = part.first + 8 * j;
      const uint32_t bits = kept[column / 32] >> (column % 32 + 2 * (lane % 4));
      const int32_t even = (bits & 1) != 0 ? pair.x : kNoToken;
      const int32_t odd = (bits & 2) != 0 ? pair.y : kNoToken;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (even >= rows.limit[r]) s[4 * j + 2 * r] = -INFINITY;
        if (odd >= rows.limit[r]) s[4 * j + 2 * r + 1] = -INFINITY;
      }
    }
  }

 private:
  int32_t count_ = 0;
  int32_t segment_ = 0;
  const int32_t* tiles_ = nullptr;
  const int32_t* zone_begins_ = nullptr;
  const uint4* kept_ = nullptr;
  const int32_t* positions_ = nullptr;  // of the segment
};

// Lets rows see tokens up to their own position, wherever the run ended. `first_row` as in
// make_row_pair.
__device__ __forceinline__ void see_up_to_own(const PrefillParams& p, const PrefillTile& tile,
                                              int32_t first_row, int32_t lane, RowPair& rows) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows.limit[r] = tile.position(first_row + lane / 4 + 8 * r, p.group) + 1;
  }
}

}  // namespace sluice::cuda
