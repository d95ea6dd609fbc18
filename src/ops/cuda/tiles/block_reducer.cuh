// Sums and maxima over a block of threads, for the searches of tiles and columns.
//
// Used by tiles/select_tiles.cu and tiles/largest.cuh. Thread rule: device code.
#pragma once

#include <cstdint>

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

// Sums and maxima over all threads of the block, the same in each of them. Two sets of partial
// results in turn, so that one barrier is enough.
template <int kThreads>
class BlockReducer {
 public:
  static constexpr int kNumWarps = kThreads / kWarpThreads;

  struct Shared {
    uint64_t partials[2][kNumWarps];
  };

  __device__ explicit BlockReducer(Shared& shared) : shared_(shared) {}

  // REQUIRES: every thread calls it.
  template <typename Combine>
  __device__ uint64_t reduce(uint64_t value, Combine combine) {
    value = over_lanes<kWarpThreads>(value, combine);
    const int lane = threadIdx.x % kWarpThreads;
    turn_ ^= 1;
    if (lane == 0) shared_.partials[turn_][threadIdx.x / kWarpThreads] = value;
    __syncthreads();
    return over_lanes<kNumWarps>(shared_.partials[turn_][lane % kNumWarps], combine);
  }
  __device__ uint64_t sum(uint64_t value) {
    return reduce(value, [](uint64_t a, uint64_t b) { return a + b; });
  }
  __device__ uint64_t max(uint64_t value) {
    return reduce(value, [](uint64_t a, uint64_t b) { return a < b ? b : a; });
  }

 private:
  template <int kWidth, typename Combine>
  __device__ static uint64_t over_lanes(uint64_t value, Combine combine) {
#pragma unroll
    for (int step = kWidth / 2; step > 0; step /= 2) {
      value = combine(value, __shfl_xor_sync(kFullWarp, value, step));
    }
    return value;
  }

  Shared& shared_;
  int turn_ = 0;
};

}  // namespace sluice::cuda
