// The pieces in which a page of one KV head is copied by warps: of its keys, then of its values.
//
// Used by pages/gather_pages.cu and pages/hot_page_fetch.cu. Thread rule: device code; sizes are
// values.
#pragma once

#include <cstdint>

#include "ops/cuda/common.cuh"
#include "ops/kv_blocks.h"

namespace sluice::cuda {

inline constexpr int kPieceLoads = 8;  // of 16 bytes, in flight per lane
inline constexpr int kWarpLoadBytes = kWarpThreads * 16;
inline constexpr int kPieceBytes = kPieceLoads * kWarpLoadBytes;

// Up to kPieceBytes of a page.
struct PagePiece {
  bool is_value;
  int32_t run_bytes;  // of the page's keys, or values
  int32_t offset;     // of the piece in them
  int32_t num_bytes;
};

struct PageBytes {
  int32_t keys;
  int32_t values;

  __device__ int32_t num_pieces() const { return pieces_of(keys) + pieces_of(values); }
  __device__ PagePiece piece(int32_t index) const {
    const int32_t of_keys = pieces_of(keys);
    PagePiece piece;
    piece.is_value = index >= of_keys;
    piece.run_bytes = piece.is_value ? values : keys;
    piece.offset = (piece.is_value ? index - of_keys : index) * kPieceBytes;
    piece.num_bytes = min(piece.run_bytes - piece.offset, kPieceBytes);
    return piece;
  }

 private:
  __device__ static int32_t pieces_of(int32_t run_bytes) {
    return (run_bytes + kPieceBytes - 1) / kPieceBytes;
  }
};

// Of a page as a block of its own.
inline PageBytes page_bytes(const KvBlockShape& page) {
  return {.keys = static_cast<int32_t>(page.keys().bytes()),
          .values = static_cast<int32_t>(page.values().bytes())};
}

}  // namespace sluice::cuda
