// Bins of digits of numbers in shared memory, and the reads of many numbers: what the searches for
// the largest numbers are made of.
//
// Used by tiles/largest.cuh and tiles/shortlist.cuh. Thread rule: device code; all threads of a
// block call each function.
#pragma once

#include <cstdint>

#include "ops/cuda/common.cuh"

namespace sluice::cuda {

inline constexpr int kDigitBits = 11;
inline constexpr int kNumBins = 1 << kDigitBits;

// A bin of sums: the 64-bit type that atomicAdd takes.
using SumBin = unsigned long long;

// A bin, and what the bins above it weigh.
struct FoundBin {
  int32_t digit = 0;
  uint64_t above = 0;
  uint64_t weight = 0;  // of the bin itself
};

template <int kThreads>
struct BinsShared {
  alignas(16) uint64_t bins[kNumBins];  // or as many of 32 bits
  uint64_t warp_sums[kThreads / kWarpThreads];
  FoundBin found;

  template <typename Weight>
  __device__ Weight* bins_of() {
    return reinterpret_cast<Weight*>(bins);
  }
};

// Empties the bins. The next barrier shows it to other threads.
template <typename Weight, int kThreads>
__device__ __forceinline__ void clear_bins(BinsShared<kThreads>& shared) {
  Weight* bins = shared.template bins_of<Weight>();
  for (int i = threadIdx.x; i < kNumBins; i += kThreads) bins[i] = 0;
}

// The highest bin that together with those above it weighs `need` or more; the lowest bin if none
// does. `need` is at least 1. The bins may be changed after it.
template <typename Weight, int kThreads>
__device__ inline FoundBin find_bin(uint64_t need, BinsShared<kThreads>& shared) {
  constexpr int kOwn = kNumBins / kThreads;  // of a thread; the first thread has the highest bins
  const Weight* bins = shared.template bins_of<Weight>();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t first = kNumBins - (thread + 1) * kOwn;
  __syncthreads();  // the bins are complete
  uint64_t own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += bins[first + i];
  uint64_t through = own;  // and all bins above
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const uint64_t other = __shfl_up_sync(kFullWarp, through, step);
    if (thread % kWarpThreads >= step) through += other;
  }
  if (thread % kWarpThreads == kWarpThreads - 1) shared.warp_sums[thread / kWarpThreads] = through;
  __syncthreads();
  for (int i = 0; i < thread / kWarpThreads; ++i) through += shared.warp_sums[i];
  uint64_t above = through - own;
  if (above < need && (through >= need || thread == kThreads - 1)) {
    int32_t digit = first + kOwn - 1;
    while (digit > first && above + bins[digit] < need) above += bins[digit--];
    shared.found = {digit, above, bins[digit]};
  }
  __syncthreads();
  return shared.found;
}

// Calls fn(number, j) for numbers [begin, end) in any order, each in some thread, and for some 0
// that are none of them. A thread has eight loads of 16 bytes under way, as many as the latency of
// the memory needs to be hidden in a block of 1,024 threads.
template <int kThreads, typename T, typename Fn>
__device__ __forceinline__ void visit_numbers(const T* numbers, int32_t begin, int32_t end,
                                              const Fn& fn) {
  constexpr int kWidth = 16 / sizeof(T);
  constexpr int kLoads = 8;
  if (begin >= end) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto offset =
      static_cast<int32_t>(reinterpret_cast<uintptr_t>(numbers + begin) % 16 / sizeof(T));
  const int32_t first = min(begin + (kWidth - offset) % kWidth, end);  // of whole vectors
  const int32_t num_vectors = (end - first) / kWidth;
  const int32_t last = first + num_vectors * kWidth;
  if (begin + thread < first) fn(numbers[begin + thread], begin + thread);
  if (last + thread < end) fn(numbers[last + thread], last + thread);
  struct alignas(16) Vector {
    T numbers[kWidth];
  };
  const auto* vectors = reinterpret_cast<const Vector*>(numbers + first);
  for (int32_t at = thread; at < num_vectors; at += kThreads * kLoads) {
    Vector loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int32_t own = at + i * kThreads;
      loaded[i] = own < num_vectors ? vectors[own] : Vector{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        fn(loaded[i].numbers[e], first + (at + i * kThreads) * kWidth + e);
      }
    }
  }
}

}  // namespace sluice::cuda
