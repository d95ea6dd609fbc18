// From scores to lists on CUDA: a block of threads per list.
//
// Used by cuda/cuda_ops. Bound: latency of about a dozen passes over the scores of one list, which
// stay in the caches. The best pages are found by their smallest score: its 32 bits are settled 11,
// 11 and 10 at a time, by counting how many candidates have which next bits. Nothing is sorted,
// since lists are in order of page. One H200, 2026-11-21: 13 us for 8192 candidates, 64 us for
// 65536.
#include "device/cuda/cuda_report.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/page_selection.h"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kNumWarps = kThreads / kWarpThreads;
constexpr int kMaxBins = 2048;
constexpr int kBinsPerThread = kMaxBins / kThreads;
constexpr int kBatch = 8;  // scores that a thread loads at once; 8192 of a block fit 16 bits

struct SelectCall {
  const float* scores;  // null: no top pages
  const int32_t* first_pos;
  const int32_t* kv_end;
  PageRule rule;
  int32_t* page_ids;
  int32_t* page_count;
  int32_t num_list_heads;
  int32_t num_q_pages;
  int32_t max_pages;  // of a list
  int32_t num_score_heads;
  int32_t max_scores;
  int32_t page_tokens;
  int32_t q_page_tokens;
  CudaReport report;
};

// What the rule takes: pages below sink_end, num_top of [sink_end, recent_begin), and
// [recent_begin, num_pages).
struct PageRanges {
  int32_t sink_end;
  int32_t num_top;
  int32_t recent_begin;
  int32_t num_pages;

  __device__ int32_t num_taken() const { return sink_end + num_top + num_pages - recent_begin; }
};

__device__ inline PageRanges find_ranges(const SelectCall& call, int32_t seq, int32_t q_page) {
  const int32_t last_row = call.kv_end[seq] - 1;
  int32_t anchor = last_row;
  int32_t end = last_row;
  if (call.q_page_tokens > 0) {
    anchor = (call.first_pos[seq] / call.q_page_tokens + q_page) * call.q_page_tokens;
    end = anchor + call.q_page_tokens - 1;
  }
  if (last_row < 0 || anchor > last_row) return {0, 0, 0, 0};
  const int32_t num_pages = end / call.page_tokens + 1;
  const int32_t recent_begin = max(0, anchor - call.rule.recent_tokens) / call.page_tokens;
  const int32_t sink_end = min(call.rule.sink_pages, recent_begin);
  if (anchor < call.rule.threshold_tokens || call.rule.top_pages >= recent_begin - sink_end) {
    return {0, 0, 0, num_pages};
  }
  return {sink_end, call.rule.top_pages, recent_begin, num_pages};
}

// The scores that one list goes by.
struct ListScores {
  const float* first;
  int64_t head_stride;
  int32_t num_summed;

  // A page's score as an integer of the same order; both zeros are one number, NaN is -inf.
  __device__ uint32_t key(int32_t page) const {
    float sum = first[page];
    for (int32_t h = 1; h < num_summed; ++h) sum = __fadd_rn(sum, first[h * head_stride + page]);
    if (isnan(sum)) sum = -INFINITY;
    const uint32_t bits = __float_as_uint(__fadd_rn(sum, 0.0f));
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
};

// The smallest key that is taken, and how many candidates with just this key.
struct Threshold {
  uint32_t key = 0;
  int32_t num_equal = 0;
};

struct Shared {
  int32_t bins[kMaxBins];
  int32_t warp_sums[kNumWarps];
  Threshold threshold;
};

struct Sums {
  int32_t before;  // over the threads before this one
  int32_t all;
};

// Sums of `value`. REQUIRES: every thread calls it.
__device__ inline Sums sum_over_threads(int32_t value, int32_t* warp_sums) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  int32_t up_to_here = value;
#pragma unroll
  for (int step = 1; step < kWarpThreads; step *= 2) {
    const int32_t other = __shfl_up_sync(kFullWarp, up_to_here, step);
    if (lane >= step) up_to_here += other;
  }
  if (lane == kWarpThreads - 1) warp_sums[warp] = up_to_here;
  __syncthreads();
  Sums sums{up_to_here - value, 0};
#pragma unroll
  for (int32_t w = 0; w < kNumWarps; ++w) {
    if (w == warp) sums.before += sums.all;
    sums.all += warp_sums[w];
  }
  __syncthreads();
  return sums;
}

// Calls fn(key) for this thread's share of the candidates [begin, end); several loads are under way
// at once.
template <typename Fn>
__device__ inline void for_each_key(const ListScores& scores, int32_t begin, int32_t end, Fn fn) {
  for (int32_t first = begin; first < end; first += kBatch * kThreads) {
    uint32_t keys[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t page = first + i * kThreads + static_cast<int32_t>(threadIdx.x);
      keys[i] = page < end ? scores.key(page) : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t page = first + i * kThreads + static_cast<int32_t>(threadIdx.x);
      if (page < end) fn(keys[i]);
    }
  }
}

// Settles `num_bits` more bits of the threshold's key, below the `settled` ones that it has.
__device__ inline void settle_bits(const ListScores& scores, int32_t begin, int32_t end,
                                   int32_t settled, int32_t num_bits, Shared& shared) {
  for (int32_t bin = threadIdx.x; bin < kMaxBins; bin += kThreads) shared.bins[bin] = 0;
  __syncthreads();
  const Threshold before = shared.threshold;
  const int32_t shift = 32 - settled - num_bits;
  const uint32_t settled_mask = settled == 0 ? 0u : ~0u << (32 - settled);
  for_each_key(scores, begin, end, [&](uint32_t key) {
    if (((key ^ before.key) & settled_mask) != 0) return;
    atomicAdd(&shared.bins[key >> shift & ((1u << num_bits) - 1)], 1);
  });
  __syncthreads();
  // A thread looks at neighbouring bins, from the largest down.
  int32_t counts[kBinsPerThread];
  int32_t total = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    counts[i] = shared.bins[threadIdx.x * kBinsPerThread + i];
    total += counts[i];
  }
  const Sums sums = sum_over_threads(total, shared.warp_sums);
  int32_t above = sums.all - sums.before - total;
#pragma unroll
  for (int i = kBinsPerThread - 1; i >= 0; --i) {
    const uint32_t bin = threadIdx.x * kBinsPerThread + i;
    if (above < before.num_equal && before.num_equal <= above + counts[i]) {
      shared.threshold = {before.key | bin << shift, before.num_equal - above};
    }
    above += counts[i];
  }
  __syncthreads();
}

// Writes the candidates of [begin, end) that the threshold lets pass, ascending: a thread looks at
// kBatch neighbours, and knows from two sums how many pass before them.
__device__ inline void write_top(const ListScores& scores, int32_t begin, int32_t end, int32_t* out,
                                 Shared& shared) {
  const Threshold threshold = shared.threshold;
  int32_t num_above = 0;  // so far
  int32_t num_equal = 0;
  for (int32_t first = begin; first < end; first += kBatch * kThreads) {
    const int32_t own = first + static_cast<int32_t>(threadIdx.x) * kBatch;
    uint32_t keys[kBatch];
    int32_t counts = 0;  // above the threshold, and 65536 times those equal to it
#pragma unroll
    for (int i = 0; i < kBatch; ++i) keys[i] = own + i < end ? scores.key(own + i) : 0;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      // No number has the key 0.
      counts += (keys[i] > threshold.key ? 1 : 0) + (keys[i] == threshold.key ? 1 << 16 : 0);
    }
    const Sums sums = sum_over_threads(counts, shared.warp_sums);
    int32_t above = num_above + (sums.before & 0xffff);
    int32_t equal = num_equal + (sums.before >> 16);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool is_equal = keys[i] == threshold.key;
      if (keys[i] > threshold.key || (is_equal && equal < threshold.num_equal)) {
        out[above + min(equal, threshold.num_equal)] = own + i;
      }
      above += keys[i] > threshold.key ? 1 : 0;
      equal += is_equal ? 1 : 0;
    }
    num_above += sums.all & 0xffff;
    num_equal += sums.all >> 16;
  }
}

// grid: one block per list.
__global__ void __launch_bounds__(kThreads, 1) select(const SelectCall call) {
  let_next_kernel_start();
  wait_for_earlier_work();
  __shared__ Shared shared;
  const auto list = static_cast<int32_t>(blockIdx.x);
  const int32_t list_head = list / call.num_q_pages % call.num_list_heads;
  const int32_t seq = list / call.num_q_pages / call.num_list_heads;
  PageRanges ranges = find_ranges(call, seq, list % call.num_q_pages);
  if (ranges.num_taken() > call.max_pages ||
      (ranges.num_top > 0 && ranges.recent_begin > call.max_scores)) {
    if (threadIdx.x == 0) fail_row(call.report, list);
    ranges = {0, 0, 0, 0};
  }
  int32_t* out = call.page_ids + static_cast<int64_t>(list) * call.max_pages;
  if (threadIdx.x == 0) call.page_count[list] = ranges.num_taken();
  for (int32_t page = threadIdx.x; page < ranges.sink_end; page += blockDim.x) out[page] = page;
  out += ranges.sink_end;
  int32_t* recent = out + ranges.num_top - ranges.recent_begin;
  for (int32_t page = ranges.recent_begin + static_cast<int32_t>(threadIdx.x);
       page < ranges.num_pages; page += blockDim.x) {
    recent[page] = page;
  }
  if (ranges.num_top == 0) return;
  const bool is_shared = call.num_list_heads == 1;
  const int64_t first_head = static_cast<int64_t>(seq) * call.num_score_heads + list_head;
  const ListScores scores{call.scores + first_head * call.max_scores, call.max_scores,
                          is_shared ? call.num_score_heads : 1};
  if (threadIdx.x == 0) shared.threshold = {0, ranges.num_top};
  settle_bits(scores, ranges.sink_end, ranges.recent_begin, 0, 11, shared);
  settle_bits(scores, ranges.sink_end, ranges.recent_begin, 11, 11, shared);
  settle_bits(scores, ranges.sink_end, ranges.recent_begin, 22, 10, shared);
  write_top(scores, ranges.sink_end, ranges.recent_begin, out, shared);
}

SelectCall make_call(const SelectPagesArgs& args) {
  const bool has_scores = args.scores.present();
  return {
      .scores = has_scores ? args.scores.data<float>() : nullptr,
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .kv_end = args.kv_end.data<int32_t>(),
      .rule = args.rule,
      .page_ids = args.pages.page_ids.data<int32_t>(),
      .page_count = args.pages.page_count.data<int32_t>(),
      .num_list_heads = static_cast<int32_t>(args.pages.page_ids.dim(1)),
      .num_q_pages = static_cast<int32_t>(args.pages.page_ids.dim(2)),
      .max_pages = static_cast<int32_t>(args.pages.page_ids.dim(3)),
      .num_score_heads = has_scores ? static_cast<int32_t>(args.scores.dim(1)) : 0,
      .max_scores = has_scores ? static_cast<int32_t>(args.scores.dim(2)) : 0,
      .page_tokens = args.pages.page_tokens,
      .q_page_tokens = args.pages.q_page_tokens,
      .report = {},
  };
}

}  // namespace

void select_pages(CudaStream& stream, const SelectPagesArgs& args) {
  const auto num_lists = static_cast<unsigned>(args.pages.page_count.num_elements());
  if (num_lists == 0) return;
  stream.submit("select_pages", [&](cudaStream_t) {
    SelectCall call = make_call(args);
    call.report = stream.report("select_pages",
                                "list {} takes more pages than page_ids (or scores) has room for; "
                                "give page_ids more, or take fewer pages");
    // Without scores there is little to do per list.
    const unsigned threads = args.scores.present() ? kThreads : 128;
    launch_early(stream, select, {.grid = dim3(num_lists), .block = dim3(threads)}, call);
  });
}

}  // namespace sluice::cuda
