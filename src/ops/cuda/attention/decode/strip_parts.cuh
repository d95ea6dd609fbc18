// Sizes, registers and shared memory of the strips of decode attention (strip.cuh).
//
// Thread rule: device code.
#pragma once

#include <type_traits>

#include "ops/cuda/attention/decode/window.cuh"

namespace sluice::cuda::decode {

inline constexpr int kHeadsPerTile = 8;  // columns of a product
inline constexpr int kTiles = kStripTokens / kTileTokens;
inline constexpr int kHalfTokens = kMaxWindowTokens / 2;  // what a block computes at a time
inline constexpr int kMaxWarps = kHalfTokens / kStripTokens;
inline constexpr int kHalfTiles = kHalfTokens / kTileTokens;

// kHeadTiles * 8 query heads per block; with page lists or without.
template <int kHeadDimValue, int kHeadTilesValue, bool kListedValue,
          KvCodes kCodesValue = KvCodes::kNone>
struct Config {
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kHeadTiles = kHeadTilesValue;
  static constexpr bool kListed = kListedValue;
  static constexpr KvCodes kCodes = kCodesValue;
  static constexpr bool kCodedKeys = kHasCodedKeys<kCodes>;
  static constexpr bool kCodedValues = kHasCodedValues<kCodes>;
  // Heads so wide that keys and values take turns in the same memory (strip_wide.cuh).
  static constexpr bool kIsWide = kHeadDim > 128;
  // Strips that a warp has in shared memory at once: tiles of codes take half of it.
  static constexpr int kStripsOfWarp =
      kCodes == KvCodes::kAll && !kListed && !kIsWide && kHeadTiles == 1 ? 2 : 1;
  static constexpr int kHeads = kHeadTiles * kHeadsPerTile;
  static constexpr int kSteps = kHeadDim / 16;  // of a product with K; row tiles of one with V
  static constexpr int kPieces = kHeadDim / 8;  // of 16 bytes, of a token
  static constexpr int kRowsOfCopy = kWarpThreads / kPieces;  // that a warp copies at once
  static constexpr int kRowFloats = kHeadDim + 4;             // of a strip's acc, per head
};

// Right operands of a lane: [.][i][2 * step + half] is channels 32 i + 16 step + 8 half + 2 c and
// the next one, of head g.
template <typename C>
struct Queries {
  uint32_t data[C::kHeadTiles][C::kSteps / 2][4];
};
// Scores of a strip, then its weights: [head tile][tile][2 * token half + head], token
// g + 8 * half, head 2 c + head.
template <typename C>
struct Scores {
  float data[C::kHeadTiles][kTiles][4];
};
// The strip's state so far: heads 2 c and 2 c + 1 of each head tile. `sum` is this lane's part.
// acc[.][m][2 * b + head] is channel 16 m + 8 b + g; of values in codes channel 16 m + 2 g + b.
template <typename C>
struct Partial {
  float max[C::kHeadTiles][2];
  float sum[C::kHeadTiles][2];
  float acc[C::kHeadTiles][C::kSteps][4];
};

template <typename C>
inline constexpr int kNumbersOf = sizeof(Partial<C>) / sizeof(float);

// A tile of codes as it lies in a block, but for the places of its pieces (strip_codes.cuh).
template <typename C>
struct alignas(16) CodedTile {
  uint8_t codes[kTileTokens][C::kHeadDim];
  uint8_t scales[kTileTokens];
};

// Keys, or values, of a tile in shared memory.
template <typename C>
using Rows = uint16_t[kTileTokens][C::kHeadDim];
template <typename C>
using KeyTile = std::conditional_t<C::kCodedKeys, CodedTile<C>, Rows<C>>;
template <typename C>
using ValueTile = std::conditional_t<C::kCodedValues, CodedTile<C>, Rows<C>>;

// Shared memory of a strip: keys and values, and after the values are used the strip's acc. Its
// rows are padded so that the lanes of a store are in different banks.
template <typename C>
struct StripBuffers {
  KeyTile<C> keys[kTiles];
  union {
    ValueTile<C> values[kTiles];
    float acc[C::kHeads][C::kRowFloats];
  };
};

// Shared memory of a warp. Copies of rows need the alignment: copy_rows turns bits of an address.
template <typename C, bool kIsWide = C::kIsWide>
struct alignas(128) WarpBuffers {
  uint16_t queries[C::kHeads][C::kHeadDim];
  StripBuffers<C> strips[C::kStripsOfWarp];

  __device__ __forceinline__ float (&acc(int strip = 0))[C::kHeads][C::kRowFloats] {
    return strips[strip].acc;
  }
};

// Of wide heads: keys, in their place values, and then acc. Queries are loaded into registers.
template <typename C>
union TilePlace {
  KeyTile<C> keys;
  ValueTile<C> values;
};
template <typename C>
struct alignas(128) WarpBuffers<C, true> {
  union {
    TilePlace<C> tiles[kTiles];
    float sums[C::kHeads][C::kRowFloats];
  };

  __device__ __forceinline__ float (&acc())[C::kHeads][C::kRowFloats] { return sums; }
};

// A warp's tokens of a window; `visible` tokens of each tile are seen, from its first.
struct Strip {
  const uint16_t* keys[kTiles];
  int32_t shifts[kTiles];  // shift_of_values
  int32_t visible[kTiles];
};

}  // namespace sluice::cuda::decode
