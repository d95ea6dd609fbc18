// What the kernels of products with few rows share: one product of tiles, and how the sums of a
// block are added up and written.
//
// A block has 1 to 4 tiles of 8 weight rows and all of k, which its warps share. Used by skinny.cu
// and e4m3.cu. Thread rule: device code.
#pragma once

#include <type_traits>

#include "ops/cuda/common.cuh"
#include "ops/cuda/matmul/skinny.h"
#include "ops/cuda/rows/silu.cuh"

namespace sluice::cuda {

inline constexpr int kTileRows = 8;  // weight rows of one product

// MatmulArgs or GatedProductArgs as plain pointers and sizes.
struct SkinnyCall {
  const uint16_t* x;
  const void* weight;    // bf16, or codes of e4m3
  const uint16_t* bias;  // or null
  void* out;
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t gated;  // columns of out after the gate, n / 2; 0: there is no gate
};

// Streamed once: it must not push x out of L1. Not a load of constants, which the compiler would
// move after wait_for_earlier_work.
__device__ inline Bf16x8 load_weight(const void* source) {
  Bf16x8 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
               : "l"(source)
               : "memory");
  return v;
}

__device__ inline void multiply(float (&sums)[4], const uint32_t (&x)[4], uint32_t w0,
                                uint32_t w1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(w0), "r"(w1));
}

// Eight columns of the sum, for rows g and g + 8 of x.
__device__ inline void multiply(float (&sums)[4], const Bf16x8& low, const Bf16x8& high,
                                const Bf16x8& w) {
  multiply(sums, {low.pairs[0], high.pairs[0], low.pairs[1], high.pairs[1]}, w.pairs[0],
           w.pairs[1]);
  multiply(sums, {low.pairs[2], high.pairs[2], low.pairs[3], high.pairs[3]}, w.pairs[2],
           w.pairs[3]);
}

template <typename Out>
__device__ inline void store(Out* out, float value) {
  if constexpr (std::is_same_v<Out, float>) {
    *out = value;
  } else {
    *out = float_to_bf16(value);
  }
}

// Adds up the warps' sums of an element. `sums` is [warp][tile][lane][4], as the products left
// them: value i of lane 4 g + t is row g + 8 (i / 2) of x, weight row 2 t + i % 2 of the tile.
template <int kTiles, int kWarps>
__device__ inline float sum_of_warps(const float* sums, int row, int column) {
  const int lane = row % 8 * 4 + column % kTileRows / 2;
  const int value = row / 8 * 2 + column % 2;
  const float* mine = sums + (column / kTileRows * kWarpThreads + lane) * 4 + value;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += mine[warp * kTiles * kWarpThreads * 4];
  return sum;
}

// Writes the columns of out of a block's part of the weight, the `part`th, plus bias; `thread` is
// one of the block's, each once, and `sums` is as sum_of_warps reads it.
template <int kTiles, int kWarps, typename Out>
__device__ inline void write_sums(const SkinnyCall& call, int part, int thread, const float* sums) {
  constexpr int kColumns = kTiles * kTileRows;
  for (int i = thread; i < call.m * kColumns; i += kWarps * kWarpThreads) {
    const int row = i / kColumns;
    const int column = i % kColumns;
    float sum = sum_of_warps<kTiles, kWarps>(sums, row, column);
    const int n = part * kColumns + column;
    if (n >= call.n) continue;
    if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
    store(static_cast<Out*>(call.out) + static_cast<int64_t>(row) * call.n + n, sum);
  }
}

// The same, after the gate: the first half of the tiles are gates, the second half `up`. Both are
// rounded to bf16 as if `matmul` had written them (the contract of gated_product).
template <int kTiles, int kWarps>
__device__ inline void write_gated(const SkinnyCall& call, int part, int thread,
                                   const float* sums) {
  constexpr int kColumns = kTiles / 2 * kTileRows;
  for (int i = thread; i < call.m * kColumns; i += kWarps * kWarpThreads) {
    const int row = i / kColumns;
    const int column = i % kColumns;
    const float gate = sum_of_warps<kTiles, kWarps>(sums, row, column);
    const float up = sum_of_warps<kTiles, kWarps>(sums, row, column + kColumns);
    const int n = part * kColumns + column;
    if (n >= call.gated) continue;
    store(static_cast<uint16_t*>(call.out) + static_cast<int64_t>(row) * call.gated + n,
          silu_times(bf16_to_float(float_to_bf16(gate)), bf16_to_float(float_to_bf16(up))));
  }
}

}  // namespace sluice::cuda
