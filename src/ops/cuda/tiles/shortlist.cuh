// The few of very many numbers that may be among the largest `count`, in shared memory and in the
// order of their places, for a search in them (tiles/largest.cuh).
//
// A first read counts numbers by 64 classes for each power of two, which tells from which class on
// there are `count`; a second read copies these numbers. Cost: two reads, where a search in the
// memory takes six. Used by tiles/select_columns.cu. Thread rule: device code; all threads of a
// block call each function.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/tiles/digit_bins.cuh"

namespace sluice::cuda {

inline constexpr int kShortlistNumbers = 2048;

struct Shortlist {
  int32_t numbers[kShortlistNumbers];
  int32_t places[kShortlistNumbers];  // ascending
  int32_t count;
};

// The class of a positive number: its power of two, and the six bits after the highest one. They
// are the upper bits of its f32, whose conversion rounds down.
__device__ __forceinline__ int32_t class_of(int32_t number) {
  const float rounded = __int2float_rz(number);
  return static_cast<int32_t>(__float_as_uint(rounded) >> 17) - (127 << 6);
}

// The least number of a class, of which there is one.
__device__ __forceinline__ int32_t least_of_class(int32_t index) {
  const int32_t power = index >> 6;
  const int32_t digits = 64 + (index & 63);
  return power >= 6 ? digits << (power - 6) : (digits + (1 << (6 - power)) - 1) >> (6 - power);
}

// Puts the list in the order of its places: each thread finds how many places are before its own.
template <int kThreads>
__device__ inline void sort_by_place(Shortlist& list) {
  constexpr int kOwn = kShortlistNumbers / kThreads;
  int32_t numbers[kOwn];
  int32_t places[kOwn];
  int32_t ranks[kOwn] = {};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    numbers[i] = list.numbers[i * kThreads + threadIdx.x];
    places[i] = list.places[i * kThreads + threadIdx.x];
  }
  for (int32_t other = 0; other < list.count; ++other) {
    const int32_t place = list.places[other];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) ranks[i] += place < places[i] ? 1 : 0;
  }
  __syncthreads();  // all have been read
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (i * kThreads + static_cast<int32_t>(threadIdx.x) >= list.count) continue;
    list.numbers[ranks[i]] = numbers[i];
    list.places[ranks[i]] = places[i];
  }
  __syncthreads();
}

// Lists numbers [begin, end) such that the largest `count` of them, and all that equal the smallest
// of these, are in the list; numbers of 0 never are. False, and no list, if there are too many.
// `count` is at least 1.
template <int kThreads>
__device__ inline bool make_shortlist(const int32_t* numbers, int32_t begin, int32_t end,
                                      int32_t count, BinsShared<kThreads>& shared,
                                      Shortlist& list) {
  uint32_t* bins = shared.template bins_of<uint32_t>();
  clear_bins<uint32_t>(shared);
  if (threadIdx.x == 0) list.count = 0;
  __syncthreads();
  visit_numbers<kThreads>(numbers, begin, end, [&](int32_t number, int32_t) {
    if (number > 0) atomicAdd(&bins[class_of(number)], 1u);
  });
  const FoundBin bin = find_bin<uint32_t>(static_cast<uint64_t>(count), shared);
  if (bin.above + bin.weight > kShortlistNumbers) return false;
  const int32_t least = least_of_class(bin.digit);
  visit_numbers<kThreads>(numbers, begin, end, [&](int32_t number, int32_t j) {
    if (number < least) return;
    const int32_t slot = atomicAdd(&list.count, 1);
    list.numbers[slot] = number;
    list.places[slot] = j;
  });
  __syncthreads();
  sort_by_place<kThreads>(list);
  return true;
}

}  // namespace sluice::cuda
