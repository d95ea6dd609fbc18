// The first k tokens of a row's order, without sorting the row.
//
// Used by sample.cu only. A coarse histogram of the values gives the number of tokens in the bins
// up to that of the k-th. If it is small, as it nearly always is, these tokens are listed and the
// first block sorts them; otherwise a radix selection finds the k-th place exactly. Thread rule: as
// sample/cluster.cuh.
#pragma once

#include "ops/cuda/sample/cluster.cuh"

namespace sluice::cuda {

// The coarse bin of a value. Values are at most 0, the largest of a row is 0; a bin is 1/16 wide,
// and the last bin has all lower values.
inline constexpr int kCoarseBins = kSampleThreads;
__device__ inline int coarse_bin(float value) {
  return static_cast<int>(fminf(-16.0f * value, static_cast<float>(kCoarseBins - 1)));
}

// Finds the first bin with which the counts reach k: found = {bin, tokens in lower bins, tokens in
// it}, {number of bins, all, 0} when they never do. Bin i of thread t is bins[t * kBins + i] of all
// blocks. Order: after a barrier of the cluster; the next use of the histogram needs one more.
template <int kBins, typename BinOf>
__device__ void find_bin(SampleShared& shared, uint32_t k, BinOf bin_of) {
  const int first = static_cast<int>(threadIdx.x) * kBins;
  const unsigned num_blocks = ClusterBlocks::count();
  uint32_t counts[kBins] = {};
  for (unsigned block = 0; block < num_blocks; ++block) {
    const uint32_t* histogram = ClusterBlocks::of_block(shared.histogram, block);
#pragma unroll
    for (int i = 0; i < kBins; ++i) counts[i] += histogram[bin_of(first + i)];
  }
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kBins; ++i) sum += counts[i];
  uint32_t before = sum_before(sum, reinterpret_cast<uint32_t*>(shared.warp_sums));
  if (threadIdx.x == kSampleThreads - 1 && before + sum < k) {
    shared.found[0] = kSampleThreads * kBins;
    shared.found[1] = before + sum;
    shared.found[2] = 0;
  }
#pragma unroll
  for (int i = 0; i < kBins; ++i) {
    if (before < k && k <= before + counts[i]) {
      shared.found[0] = static_cast<uint32_t>(first + i);
      shared.found[1] = before;
      shared.found[2] = counts[i];
    }
    before += counts[i];
  }
  __syncthreads();
}

// Zeroes this block's bins, with a barrier of the block.
__device__ inline void clear_histogram(SampleShared& shared, int num_bins) {
  for (int bin = threadIdx.x; bin < num_bins; bin += kSampleThreads) shared.histogram[bin] = 0;
  __syncthreads();
}

// The limit that the first k places exceed: exactly k tokens have place > limit. A radix selection,
// 11 or 10 bits a pass; three passes determine the value, and only ties at the border need the
// other three, which choose among ids. `for_each_place(fn)` calls fn(place) for every token.
// REQUIRES: k >= 1; there are at least k tokens.
template <typename ForEachPlace>
__device__ uint64_t select_limit(SampleShared& shared, uint32_t k, ForEachPlace for_each_place) {
  uint64_t prefix = 0;
  int shift = 64;
  for (int level = 0;; ++level) {
    const int width = level % 3 == 2 ? 10 : 11;
    const uint64_t last = (uint64_t{1} << width) - 1;
    shift -= width;
    ClusterBlocks::sync();  // no thread reads the histogram any more
    clear_histogram(shared, kDigitBins);
    for_each_place([&](uint64_t place) {
      // Shifted twice, since a shift by 64 is undefined.
      if (place >> shift >> width == prefix)
        atomicAdd(&shared.histogram[place >> shift & last], 1u);
    });
    ClusterBlocks::sync();
    find_bin<kDigitBins / kSampleThreads>(shared, k, [](int i) { return kDigitBins - 1 - i; });
    k -= shared.found[1];
    prefix = prefix << width | (kDigitBins - 1 - shared.found[0]);
    if (shared.found[2] == k || shift == 0) return (prefix << shift) - 1;
  }
}

// Adds the coarse bins of a thread's tokens to its block's histogram. The last bin, which has most
// tokens of a sharp distribution, is counted in a register, since atomics on it would serialise.
class CoarseCounter {
 public:
  __device__ explicit CoarseCounter(SampleShared& shared) : shared_(shared) {}

  __device__ void add(float value) {
    const int bin = coarse_bin(value);
    if (bin == kCoarseBins - 1) {
      ++num_last_;
    } else {
      atomicAdd(&shared_.histogram[bin], 1u);
    }
  }
  // REQUIRES: called by whole warps, once, after the last `add`.
  __device__ void finish() {
    const uint32_t sum = __reduce_add_sync(kFullWarp, num_last_);
    if (threadIdx.x % kWarpThreads == 0) {
      atomicAdd(&shared_.histogram[kCoarseBins - 1], sum);
    }
  }

 private:
  SampleShared& shared_;
  uint32_t num_last_ = 0;
};

// Lists tokens in the first block, at least the first k of the order or all if there are fewer, and
// puts them in order there: shared.sorted. Returns their number in the first block, 0 elsewhere.
//
// `for_each_token(fn)` calls fn(value, place) for every token, where `value` decides the coarse bin
// and never contradicts the order of places.
// REQUIRES: the blocks' histograms hold the coarse bins of these values, complete at a barrier of
// the cluster; 1 <= k <= kMaxListed. Order: the histograms are free afterwards.
template <typename ForEachToken>
__device__ uint32_t list_first(SampleShared& shared, uint32_t k, ForEachToken for_each_token) {
  find_bin<1>(shared, k, [](int i) { return i; });
  const int last_bin = static_cast<int>(shared.found[0]);
  const bool fits = shared.found[1] + shared.found[2] <= kMaxListed;
  uint64_t limit = 0;
  if (!fits) {
    limit = select_limit(
        shared, k, [&](auto fn) { for_each_token([&](float, uint64_t place) { fn(place); }); });
  }
  for_each_token([&](float value, uint64_t place) {
    if (fits ? coarse_bin(value) > last_bin : place <= limit) return;
    const uint32_t index = atomicAdd(ClusterBlocks::of_block(&shared.num_listed, 0), 1u);
    ClusterBlocks::of_block(shared.listed, 0)[index] = place;
  });
  ClusterBlocks::sync();
  if (ClusterBlocks::rank() != 0) return 0;
  const uint32_t count = shared.num_listed;
  const uint64_t mine = threadIdx.x < count ? shared.listed[threadIdx.x] : 0;
  // Sorts by counting: the position of a token is the number of larger places.
  uint32_t position = 0;
  for (uint32_t i = 0; i < count; ++i) position += shared.listed[i] > mine ? 1 : 0;
  if (threadIdx.x < count) shared.sorted[position] = mine;
  __syncthreads();
  if (threadIdx.x == 0) shared.num_listed = 0;  // for the next list, a barrier or more from here
  return count;
}

}  // namespace sluice::cuda
