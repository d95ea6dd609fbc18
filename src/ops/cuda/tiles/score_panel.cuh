// The shared memory of a step of a product in score_tiles: 64 elements, 128 bytes, of each vector.
//
// Used by tiles/score_kernel.cuh and its products. Thread rule: device code.
#pragma once

#include <cstdint>

#include "ops/cuda/common.cuh"

namespace sluice::cuda::tiles {

inline constexpr int kKeysAtOnce = 128;
inline constexpr int kStepElements = 64;
inline constexpr int kStepPieces = kStepElements / 8;  // of 16 bytes
inline constexpr int kWarpRows = 32;

// 16-byte piece c of vector r lies at c ^ (r % 8), so that the eight vectors that an ldmatrix reads
// at once are in different banks. This is Hopper's 128-byte swizzle as well, at 1024-byte
// alignment.
template <int kVectors>
using Panel = uint16_t[kVectors][kStepElements];

template <int kVectors>
__device__ __forceinline__ uint16_t* piece_of(Panel<kVectors>& panel, int vector, int piece) {
  return &panel[vector][(piece ^ (vector % 8)) * 8];
}

}  // namespace sluice::cuda::tiles
