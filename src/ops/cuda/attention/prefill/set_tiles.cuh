// Tile masks in prefill attention: which KV tiles a tile of rows visits.
//
// Used by both prefill kernels. A query tile has 128 positions and begins at the first row, so a
// tile of packed rows (128, 64 in the general kernel) lies in one query tile for any group: a CTA
// reads one row of bits. Bits of KV tiles outside the run and above the diagonal are not read.
// Thread rule: device code.
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/params.h"

namespace sluice::cuda {

// The list head of a tile of rows.
__device__ __forceinline__ int32_t list_head(const PrefillMask& mask, const PrefillTile& tile) {
  return mask.num_list_heads == 1 ? 0 : tile.kv_head;
}

// Index of a tile of rows' entry in the mask. REQUIRES: it has a row.
__device__ __forceinline__ int64_t mask_entry(const PrefillParams& p, const PrefillMask& mask,
                                              const PrefillTile& tile) {
  const int32_t q_tile =
      tile.position(tile.first_row, p.group) / kMaskTileTokens - mask.first_q_tile;
  const int64_t list = static_cast<int64_t>(tile.seq) * mask.num_list_heads + list_head(mask, tile);
  return list * mask.num_q_tiles + q_tile;
}

// The set tiles of which a tile of rows sees a token of the run.
class SetTiles {
 public:
  static constexpr int32_t kTileTokens = kMaskTileTokens;
  static constexpr int32_t kWordTokens = 32 * kTileTokens;

  // `num_rows`: packed rows of the tile of rows.
  __device__ SetTiles(const PrefillParams& p, const PrefillMask& mask, const PrefillTile& tile,
                      int32_t num_rows)
      : begin_(tile.kv_begin) {
    if (tile.first_row >= tile.num_rows) return;
    end_ = tile.limit(tile.first_row + num_rows - 1, p.group);
    words_ = mask.bits + mask_entry(p, mask, tile) * mask.num_words;
  }

  // The first token from `token` on that begins a set tile, or `token` itself inside of one;
  // kNoToken after the last. A tile of the kernel that begins at `token` divides a set tile.
  __device__ int32_t next(int32_t token) const {
    while (token < end_) {
      const int32_t tile = token / kTileTokens;
      const uint32_t bits = words_[tile / 32] >> tile % 32;
      if ((bits & 1) != 0) return token;
      token = bits == 0 ? (tile / 32 + 1) * kWordTokens : (tile + __ffs(bits) - 1) * kTileTokens;
    }
    return kNoToken;
  }

  // Number, first and last of the set tiles.
  struct Summary {
    int32_t count = 0;
    int32_t first = kNoToken;
    int32_t last = -1;
  };

  // The whole warp calls it; all lanes get the same.
  __device__ Summary summary(int32_t lane) const {
    Summary of;
    for (int32_t word = begin_ / kWordTokens + lane; word * kWordTokens < end_; word += 32) {
      const uint32_t bits = words_[word] & bits_of_run(word);
      if (bits == 0) continue;
      of.count += __popc(bits);
      of.first = min(of.first, 32 * word + __ffs(bits) - 1);
      of.last = 32 * word + 31 - __clz(bits);
    }
    return {.count = __reduce_add_sync(0xffffffffu, of.count),
            .first = __reduce_min_sync(0xffffffffu, of.first),
            .last = __reduce_max_sync(0xffffffffu, of.last)};
  }

  // The number of set tiles from the one at `token` on. The whole warp calls it.
  __device__ int32_t count_from(int32_t token, int32_t lane) const {
    const int32_t first_tile = max(token, begin_) / kTileTokens;
    int32_t count = 0;
    for (int32_t word = first_tile / 32 + lane; word * kWordTokens < end_; word += 32) {
      const uint32_t bits = words_[word] & bits_of_run(word);
      count += __popc(word == first_tile / 32 ? bits & 0xffffffffu << first_tile % 32 : bits);
    }
    return __reduce_add_sync(0xffffffffu, count);
  }

 private:
  // The bits of a word whose tiles have a token of [begin_, end_). REQUIRES: one has.
  __device__ uint32_t bits_of_run(int32_t word) const {
    const int32_t first = max(begin_ / kTileTokens - 32 * word, 0);
    const int32_t last = min((end_ - 1) / kTileTokens - 32 * word, 31);
    return 0xffffffffu << first & 0xffffffffu >> (31 - last);
  }

  const uint32_t* words_ = nullptr;  // of the query tile; word w has tiles [32 w, 32 w + 32)
  int32_t begin_;
  int32_t end_ = 0;  // one past the last token of the run that the last row sees
};

}  // namespace sluice::cuda
