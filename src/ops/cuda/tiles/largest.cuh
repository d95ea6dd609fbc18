// The largest of many numbers, of equal numbers the first, in ascending order of their places.
//
// The smallest number that is taken is found by its digits of 11 bits, from the highest on, with a
// count or a sum for each digit: nothing is sorted. A last pass visits what is taken, each warp in
// its own range. Cost: a read of all numbers for each digit of T, and three more. Used by
// tiles/select_columns.cu and tiles/select_diagonals.cu. Thread rule: device code; all threads of a
// block call each function.
#pragma once

#include <type_traits>

#include "ops/cuda/common.cuh"
#include "ops/cuda/tiles/block_reducer.cuh"
#include "ops/cuda/tiles/digit_bins.cuh"

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
    BinsShared<kThreads> bins;
    typename Reducer::Shared reducer;
    int32_t num_above[kNumWarps];  // candidates above the threshold
    int32_t num_equal[kNumWarps];  // and equal to it
  };

  __device__ Largest(const T* numbers, const Candidates& candidates, Shared& shared)
      : numbers_(numbers), candidates_(candidates), shared_(shared), reducer_(shared.reducer) {}

  // Candidates of at least some number, which is 1 or more.
  __device__ int32_t count_from(T least) {
    int32_t count = 0;
    visit([&](T number, int32_t) { count += number >= least ? 1 : 0; });
    return static_cast<int32_t>(reducer_.sum(static_cast<uint64_t>(count)));
  }

  // The sum of the candidates of at least some number.
  __device__ uint64_t sum_from(T least) {
    uint64_t sum = 0;
    visit([&](T number, int32_t) { sum += number >= least ? static_cast<uint64_t>(number) : 0; });
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
    const Found found = find_largest<SumBin>(missing);
    const uint64_t of_equal = missing - found.above;
    const auto unit = static_cast<uint64_t>(found.number);
    const int32_t count =
        count_above(found.number) + static_cast<int32_t>((of_equal + unit - 1) / unit);
    candidates_.count = min(candidates_.count, count);
  }

  __device__ LargestCut<T> find_cut() {
    const int32_t num_positive = count_from(1);
    LargestCut<T> cut{.count = min(num_positive, candidates_.count)};
    if (cut.count <= 0) return {};
    if (cut.count == num_positive) {
      cut.threshold = 0;
      return cut;
    }
    // The largest number that at least `count` candidates reach: 1 or more.
    const Found found = find_largest<uint32_t>(static_cast<uint64_t>(cut.count));
    cut.threshold = found.number;
    cut.num_equal = cut.count - static_cast<int32_t>(found.above);
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
    for_each_ballot(cut, begin, end, [&](const Ballots& all, int32_t) {
      before.above += __popc(all.above);
      before.equal += __popc(all.equal);
    });
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
    for_each_ballot(cut, begin, end, [&](const Ballots& all, int32_t first) {
      const auto above = static_cast<int32_t>(before.above + __popc(all.above & lower_lanes));
      const auto equal = static_cast<int32_t>(before.equal + __popc(all.equal & lower_lanes));
      const bool is_above = (all.above >> lane & 1) != 0;
      const bool is_equal = (all.equal >> lane & 1) != 0;
      if (is_above || (is_equal && equal < cut.num_equal)) {
        fn(above + min(equal, cut.num_equal), first + lane);
      }
      before.above += __popc(all.above);
      before.equal += __popc(all.equal);
    });
  }

 private:
  // Of the lanes of a warp, or counts of them.
  struct Ballots {
    uint32_t above;
    uint32_t equal;
  };

  // A number, and what the candidates above it weigh.
  struct Found {
    T number = 0;
    uint64_t above = 0;
  };

  // A number may be the largest of its type.
  __device__ int32_t count_above(T number) {
    int32_t count = 0;
    visit([&](T other, int32_t) { count += other > number ? 1 : 0; });
    return static_cast<int32_t>(reducer_.sum(static_cast<uint64_t>(count)));
  }

  template <typename Fn>
  __device__ __forceinline__ void visit(const Fn& fn) const {
    visit_numbers<kThreads>(numbers_, candidates_.begin, candidates_.end, fn);
  }

  // The largest number from which on the candidates weigh `need` or more: each 1, or with Weight =
  // SumBin the number itself. REQUIRES: all positive candidates together weigh that much, and
  // `need` is at least 1. So a digit is 0 if the higher ones weigh too little: zeros, which are the
  // most frequent digits, are not counted.
  template <typename Weight>
  __device__ Found find_largest(uint64_t need) {
    constexpr int kTopShift = (static_cast<int>(sizeof(T)) * 8 - 2) / kDigitBits * kDigitBits;
    Weight* bins = shared_.bins.template bins_of<Weight>();
    Found found;
    for (int shift = kTopShift; shift >= 0; shift -= kDigitBits) {
      clear_bins<Weight>(shared_.bins);
      __syncthreads();
      visit([&](T number, int32_t) {
        const T upper = number >> shift;
        const auto digit = static_cast<int32_t>(upper & (kNumBins - 1));
        if (digit == 0 || upper >> kDigitBits != found.number) return;
        atomicAdd(&bins[digit],
                  std::is_same_v<Weight, SumBin> ? static_cast<Weight>(number) : Weight{1});
      });
      const FoundBin bin = find_bin<Weight>(need - found.above, shared_.bins);
      found.number = found.number << kDigitBits | static_cast<T>(bin.digit);
      found.above += bin.above;
    }
    return found;
  }

  // Calls fn(ballots, first) for each 32 candidates from `first` on, with eight loads under way.
  template <typename Fn>
  __device__ __forceinline__ void for_each_ballot(const LargestCut<T>& cut, int32_t begin,
                                                  int32_t end, const Fn& fn) const {
    constexpr int kLoads = 8;
    const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
    for (int32_t first = begin; first < end; first += kLoads * kWarpThreads) {
      T numbers[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int32_t j = first + i * kWarpThreads + lane;
        numbers[i] = j < end ? numbers_[j] : 0;
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const Ballots all{__ballot_sync(kFullWarp, numbers[i] > cut.threshold),
                          __ballot_sync(kFullWarp, numbers[i] == cut.threshold)};
        fn(all, first + i * kWarpThreads);
      }
    }
  }

  const T* numbers_;
  Candidates candidates_;
  Shared& shared_;
  Reducer reducer_;
};

}  // namespace sluice::cuda
