// The border between score_tiles on the CPU and its inner loop, one per ISA.
//
// Used by tiles/score_tiles.cc; the tiles/kernels_<isa>.cc files are compiled with flags of their
// own (matmul/kernel.h says what they may include). All are the same multiplications and additions
// in the same order, so they give the same bits. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {

inline constexpr int32_t kKeyLanes = 16;     // num_keys is a multiple of it
inline constexpr int32_t kProbesAtOnce = 4;  // rows that share the loads of the keys

struct TileKernels {
  // sums[i][j] = the sum over e of probes[i][e] * keys[e][j], in ascending order of e, in f32.
  // probes: `count` (at most kProbesAtOnce) vectors of `width` bf16 numbers, as their bits;
  // keys: f32 [width][num_keys]; sums: f32 [count][num_keys].
  void (*dot_keys)(const uint16_t* const* probes, int32_t count, int64_t width, const float* keys,
                   int32_t num_keys, float* sums);
};

// REQUIRES of each: the CPU has its ISA.
const TileKernels& tile_kernels_portable();
const TileKernels& tile_kernels_avx2();
const TileKernels& tile_kernels_avx512();

}  // namespace sluice
