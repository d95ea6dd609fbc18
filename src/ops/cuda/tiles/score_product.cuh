// The product of score_tiles by warp-wide matrix products (mma.sync), on every GPU from sm_80 on.
//
// A product computes s[m][4 j + 2 r + e], the score of row row_of_thread of thread 16 m + 8 r +
// lane / 4 of the warp and key 8 j + 2 (lane % 4) + e. Used by tiles/score_rows.cu and
// tiles/score_cells.cu. Thread rule: device code; all threads of a block call each function.
#pragma once

#include "ops/cuda/attention/prefill/sm80.cuh"
#include "ops/cuda/tiles/score_panel.cuh"

namespace sluice::cuda::tiles {

struct WarpProduct {
  static constexpr int kStages = 2;
  static constexpr int kStepsAhead = 1;
  static constexpr int kAlignment = 128;

  // The row of the block whose place the thread finds.
  __device__ static int row_of_thread() { return static_cast<int>(threadIdx.x); }
  // After a thread's copies of a step have ended, before the barrier that shows them to others.
  __device__ static void begin() {}
  // s += rows keys^T over a step, for the warp's 32 rows; `adds` is false for the first step of a
  // block of rows, where s is 0.
  template <int kRows>
  __device__ __forceinline__ static void multiply(Panel<kRows>& rows, Panel<kKeysAtOnce>& keys,
                                                  bool adds, float (&s)[2][64]);
  // After the last step of a block of rows: s is complete.
  __device__ static void finish(float (&)[2][64]) {}
};

template <int kRows>
__device__ __forceinline__ void WarpProduct::multiply(Panel<kRows>& rows, Panel<kKeysAtOnce>& keys,
                                                      bool, float (&s)[2][64]) {
  const int warp = threadIdx.x / kWarpThreads;
  const int lane = threadIdx.x % kWarpThreads;
#pragma unroll
  for (int piece = 0; piece < kStepPieces; piece += 2) {
    uint32_t a[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int row = warp * kWarpRows + m * 16 + lane % 16;
      sm80::load_matrices(piece_of(rows, row, piece + lane / 16), a[m]);
    }
#pragma unroll
    for (int key = 0; key < kKeysAtOnce; key += 16) {
      uint32_t b[4];
      const int own = key + lane / 16 * 8 + lane % 8;
      sm80::load_matrices(piece_of(keys, own, piece + lane / 8 % 2), b);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        sm80::multiply(&s[m][key / 2], a[m], b[0], b[1]);
        sm80::multiply(&s[m][key / 2 + 4], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace sluice::cuda::tiles
