// The largest of many numbers, of equal numbers the first, in ascending order of their places.
//
// The smallest number that is taken is found by a search over bits with counts: nothing is sorted.
// A second pass visits what is taken, each warp in its own range. Cost: a read of all numbers for
// each bit of the largest, and four more. Used by tiles/select_columns.cu and
// tiles/select_diagonals.cu. Thread rule: device code; all threads of a block call each function.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/tiles/block_reducer.cuh"

namespace sluice::cuda {

// Numbers [begin, end) are candidates, of which `count` are taken at most; those of 0 never are.
struct Candidates {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t count = 0;
};

// What is taken: all above the threshold, and the first `num_equal` of those equal to it.
template <typename T>
struct LargestCut {
  T threshold = 1;
  int32_t num_equal = 0;
  int32_t count = 0;  // of all
};

// T is signed; numbers are not negative.
template <int kThreads, typename T>
class Largest {
 public:
  static constexpr int kNumWarps = kThreads / kWarpThreads;
  using Reducer = BlockReducer<kThreads>;

  struct Shared {
    typename Reducer::Shared reducer;
    int32_t num_above[kNumWarps];  // candidates above the threshold
    int32_t num_equal[kNumWarps];  // and equal to it
  };

  __device__ Largest(const T* numbers, const Candidates& candidates, Shared& shared)
      : numbers_(numbers), candidates_(candidates), shared_(shared), reducer_(shared.reducer) {}

  // Candidates of at least some number.
  __device__ int32_t count_from(T least) {
    int32_t count = 0;
#pragma unroll 8
    for (int32_t j = first_own(); j < candidates_.end; j += kThreads) {
      count += numbers_[j] >= least ? 1 : 0;
    }
    return static_cast<int32_t>(reducer_.sum(static_cast<uint64_t>(count)));
  }

  // The sum of the candidates of at least some number.
  __device__ uint64_t sum_from(T least) {
    uint64_t sum = 0;
#pragma unroll 8
    for (int32_t j = first_own(); j < candidates_.end; j += kThreads) {
      if (numbers_[j] >= least) sum += static_cast<uint64_t>(numbers_[j]);
    }
    return reducer_.sum(sum);
  }

  // Takes only as many as it takes for the other candidates to hold `allowed` at most.
  __device__ void leave_at_most(uint64_t allowed) {
    const uint64_t all = sum_from(1);
    if (all <= allowed) {
      candidates_.count = 0;
      return;
    }
    // The largest number from which on the candidates hold what is missing. Those equal to it all
    // have its mass, so that a division gives how many of them it takes.
    const uint64_t missing = all - allowed;
    T threshold = 0;
    for (T bit = T{1} << (63 - __clzll(static_cast<long long>(largest()))); bit != 0; bit /= 2) {
      if (sum_from(threshold | bit) >= missing) threshold |= bit;
    }
    const uint64_t of_equal = missing - sum_from(threshold + 1);
    const auto unit = static_cast<uint64_t>(threshold);
    const int32_t count =
        count_above(threshold) + static_cast<int32_t>((of_equal + unit - 1) / unit);
    candidates_.count = min(candidates_.count, count);
  }

  __device__ LargestCut<T> find_cut() {
    const int32_t num_positive = count_from(1);
    LargestCut<T> cut{.count = min(num_positive, candidates_.count)};
    if (cut.count <= 0) return {};
    if (cut.count < num_positive) {
      // The largest number that at least `count` candidates reach: 1 or more.
      const int first_bit = 63 - __clzll(static_cast<long long>(largest()));
      cut.threshold = 0;
      for (T bit = T{1} << first_bit; bit != 0; bit /= 2) {
        if (count_from(cut.threshold | bit) >= cut.count) cut.threshold |= bit;
      }
    }
    cut.num_equal = cut.count - count_above(cut.threshold);
    return cut;
  }

  // Calls fn(rank, j) in some thread for each number j that is taken; ranks ascend with j.
  template <typename Fn>
  __device__ void for_each_taken(const LargestCut<T>& cut, const Fn& fn) {
    const auto warp = static_cast<int32_t>(threadIdx.x / kWarpThreads);
    const int32_t num = max(candidates_.end - candidates_.begin, 0);
    const int32_t steps_of_warp = (num + kThreads - 1) / kThreads;
    const int32_t of_warp = steps_of_warp * kWarpThreads;
    const int32_t begin = candidates_.begin + min(warp * of_warp, num);
    const int32_t end = candidates_.begin + min((warp + 1) * of_warp, num);
    Ballots before{};  // the places before the one at hand
    for (int32_t first = begin; first < end; first += kWarpThreads) {
      const Ballots all = ballots(cut, first, end);
      before.above += __popc(all.above);
      before.equal += __popc(all.equal);
    }
    if (threadIdx.x % kWarpThreads == 0) {
      shared_.num_above[warp] = static_cast<int32_t>(before.above);
      shared_.num_equal[warp] = static_cast<int32_t>(before.equal);
    }
    __syncthreads();
    before = {};
    for (int32_t i = 0; i < warp; ++i) {
      before.above += shared_.num_above[i];
      before.equal += shared_.num_equal[i];
    }
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
    const uint32_t lower_lanes = (1u << lane) - 1;
    for (int32_t first = begin; first < end; first += kWarpThreads) {
      const Ballots all = ballots(cut, first, end);
      const auto above = static_cast<int32_t>(before.above + __popc(all.above & lower_lanes));
      const auto equal = static_cast<int32_t>(before.equal + __popc(all.equal & lower_lanes));
      const bool is_above = (all.above >> lane & 1) != 0;
      const bool is_equal = (all.equal >> lane & 1) != 0;
      if (is_above || (is_equal && equal < cut.num_equal)) {
        fn(above + min(equal, cut.num_equal), first + lane);
      }
      before.above += __popc(all.above);
      before.equal += __popc(all.equal);
    }
  }

 private:
  // Of the lanes of a warp, or counts of them.
  struct Ballots {
    uint32_t above;
    uint32_t equal;
  };

  __device__ Ballots ballots(const LargestCut<T>& cut, int32_t first, int32_t end) const {
    const auto j = first + static_cast<int32_t>(threadIdx.x % kWarpThreads);
    const T number = j < end ? numbers_[j] : 0;
    return {__ballot_sync(kFullWarp, number > cut.threshold),
            __ballot_sync(kFullWarp, number == cut.threshold)};
  }

  __device__ int32_t first_own() const {
    return candidates_.begin + static_cast<int32_t>(threadIdx.x);
  }

  __device__ uint64_t largest() {
    T largest = 0;
#pragma unroll 8
    for (int32_t j = first_own(); j < candidates_.end; j += kThreads) {
      largest = max(largest, numbers_[j]);
    }
    return reducer_.max(static_cast<uint64_t>(largest));
  }

  __device__ int32_t count_above(T number) {
    int32_t count = 0;
#pragma unroll 8
    for (int32_t j = first_own(); j < candidates_.end; j += kThreads) {
      count += numbers_[j] > number ? 1 : 0;
    }
    return static_cast<int32_t>(reducer_.sum(static_cast<uint64_t>(count)));
  }

  const T* numbers_;
  Candidates candidates_;
  Shared& shared_;
  Reducer reducer_;
};

}  // namespace sluice::cuda
