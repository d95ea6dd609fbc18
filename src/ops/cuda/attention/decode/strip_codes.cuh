// Tiles of codes in the strips of decode attention (strip.cuh): copied as they lie, and turned into
// bf16 in shared memory, so that all that follows is that of bf16.
//
// In shared memory a tile of codes takes half of the place of its bf16: the copies of all tiles of
// a strip are in flight together, as those of bf16, and only the turning waits for them. Cost: a
// tile of 16 rows of 128 is 4 loads and 8 stores of 16 bytes a lane, and some 50 instructions for
// each 16 numbers.
//
// Thread rule: device code, whole warps.
#pragma once

#include "ops/cuda/attention/decode/strip_parts.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::decode {

// Starts the copy of a tile of codes as it lies, 16 rows and their scales, to the begin of the
// place that its bf16 will take; turn_tile makes them. Rows that are not visible are not read.
template <typename C>
__device__ __forceinline__ void copy_codes(const uint16_t* source, int32_t visible, int32_t lane,
                                           Tile<C>& tile) {
  constexpr int kPiecesOfRow = C::kHeadDim / 16;
  const uint32_t to = shared_address(tile);
#pragma unroll
  for (int i = 0; i < C::kHeadDim / kWarpThreads; ++i) {
    const int32_t piece = lane + i * kWarpThreads;
    copy_16(to + piece * 16, source + piece * 8, piece / kPiecesOfRow < visible);
  }
  if (lane == 0) copy_16(to + C::kHeadDim * 16, source + C::kHeadDim * 8, true);
}

// Turns a tile into bf16 in its place, by way of registers; rows that are not visible become 0.
// REQUIRES: its copies have ended, for all lanes; a __syncwarp follows.
template <typename C>
__device__ __forceinline__ void turn_tile(const KvCodec& codec, int32_t visible, int32_t lane,
                                          Tile<C>& tile) {
  constexpr int kPiecesOfRow = C::kHeadDim / 16;
  constexpr int kPiecesOfLane = C::kHeadDim / kWarpThreads;
  auto* bytes = reinterpret_cast<std::byte*>(&tile);
  uint4 codes[kPiecesOfLane];
  uint32_t factors[kPiecesOfLane];
#pragma unroll
  for (int i = 0; i < kPiecesOfLane; ++i) {
    const int32_t piece = lane + i * kWarpThreads;
    const int32_t row = piece / kPiecesOfRow;
    codes[i] = reinterpret_cast<const uint4*>(bytes)[piece];
    const auto scale = static_cast<uint32_t>(bytes[C::kHeadDim * 16 + row]);
    factors[i] = row < visible ? row_factors(codec, scale) : 0u;
  }
  __syncwarp();  // all lanes have read what is overwritten now
#pragma unroll
  for (int i = 0; i < kPiecesOfLane; ++i) {
    const int32_t piece = lane + i * kWarpThreads;
    const int32_t row = piece / kPiecesOfRow;
    const int32_t first = piece % kPiecesOfRow * 2;  // of bf16, 8 channels each
    auto* to = reinterpret_cast<Bf16x8*>(bytes + row * C::kHeadDim * 2);
    to[first ^ row % 8] = turn_codes(codec, uint2{codes[i].x, codes[i].y}, factors[i]);
    to[(first + 1) ^ row % 8] = turn_codes(codec, uint2{codes[i].z, codes[i].w}, factors[i]);
  }
}

// The tiles of a strip.
template <typename C>
__device__ __forceinline__ void turn_tiles(const KvCodec& codec, const Strip& strip, int32_t lane,
                                           Tile<C> (&tiles)[kTiles]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (strip.visible[t] > 0) turn_tile<C>(codec, strip.visible[t], lane, tiles[t]);
  }
  __syncwarp();
}

}  // namespace sluice::cuda::decode
