// From scores to lists on CUDA: a block of threads, or a cluster of blocks, per list.
//
// Bound: latency of some six passes over the scores of one list. Tile: a block holds 8192 scores in
// registers; a longer list has a cluster of up to eight blocks, as long as all clusters run at
// once, and scores that no register holds are read again from the L1 cache. A list takes all pages
// above a threshold (pages/page_threshold.cuh) and as many equal to it as are missing; nothing is
// sorted, since lists are in order of page. Times: docs/kernels/cuda_attention.md. Thread rule:
// enqueue only.
#include <algorithm>
#include <bit>

#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/cluster_blocks.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/pages/page_threshold.cuh"

namespace sluice::cuda {
namespace {

using namespace selection;  // thresholds

// SelectPagesArgs as plain pointers and sizes.
struct SelectCall {
  const float* scores;       // [num_seqs][num_score_heads][max_scores]; null: no top pages
  const int32_t* first_pos;  // [num_seqs]
  const int32_t* kv_end;     // [num_seqs]
  PageRule rule;
  int32_t* page_ids;    // [num_seqs][num_list_heads][num_q_pages][max_pages]
  int32_t* page_count;  // [num_seqs][num_list_heads][num_q_pages]
  int32_t num_list_heads;
  int32_t num_q_pages;
  int32_t max_pages;  // of a list
  int32_t num_score_heads;
  int32_t max_scores;
  int32_t page_tokens;
  int32_t q_page_tokens;
  int32_t* reads;            // [num_blocks][pages_per_block]; null: nothing is counted
  const int32_t* block_ids;  // [num_seqs][max_ids]
  int32_t pages_per_block;
  int32_t max_ids;
  CudaReport report;
};

// The counts of one sequence's pages.
struct ReadCounter {
  int32_t* reads;  // null: nothing is counted
  const int32_t* ids;
  int32_t pages_per_block;

  __device__ void add(int32_t page) const {
    if (reads == nullptr) return;
    const int64_t row = ids[page / pages_per_block];
    atomicAdd(reads + row * pages_per_block + page % pages_per_block, 1);
  }
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

// Applies PageRule (ops/pages/page_selection.h) to one list. Where all candidates would be taken
// anyway, no scores are needed and the list is all pages.
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

// The number of candidates of lower-ranked blocks that pass the threshold: x above it, y equal to
// it. `own` are this block's.
__device__ inline int2 num_passing_before(int2 own, Shared& shared) {
  if (threadIdx.x < kWarpThreads) push_to_blocks(shared.num_passing_of_blocks, own);
  ClusterBlocks::sync();
  int2 sum = {};
  for (unsigned block = 0; block < ClusterBlocks::rank(); ++block) {
    sum.x += shared.num_passing_of_blocks[block].x;
    sum.y += shared.num_passing_of_blocks[block].y;
  }
  return sum;
}

// Writes the candidates that pass the threshold, ascending: all above it, and the first
// threshold.num_wanted of those equal to it. Two passes: counts per warp, then places from a prefix
// sum over lanes, warps and blocks.
template <bool kClustered>
__device__ inline void write_top(const Keys& keys, const Range& threshold, int32_t* out,
                                 const ReadCounter& counter, Shared& shared) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  int2 num_own{0, 0};
  keys.for_each([&](int32_t, uint32_t key) {
    num_own.x += __popc(__ballot_sync(kFullWarp, key > threshold.low));
    num_own.y += __popc(__ballot_sync(kFullWarp, key == threshold.low));
  });
  if (lane == 0) shared.num_passing[warp] = num_own;
  __syncthreads();
  const int2 other = shared.num_passing[lane];
  int32_t above = __reduce_add_sync(kFullWarp, lane < warp ? other.x : 0);
  int32_t equal = __reduce_add_sync(kFullWarp, lane < warp ? other.y : 0);
  if constexpr (kClustered) {
    const int2 of_block{__reduce_add_sync(kFullWarp, other.x),
                        __reduce_add_sync(kFullWarp, other.y)};
    const int2 before = num_passing_before(of_block, shared);
    above += before.x;
    equal += before.y;
  }
  // `above` and `equal` count the candidates before this turn of the warp. A candidate's place is
  // the number of taken ones before it: all above the threshold, and at most num_wanted equal ones.
  const uint32_t lower_lanes = (1u << lane) - 1;
  keys.for_each([&](int32_t page, uint32_t key) {
    const bool is_above = key > threshold.low;
    const bool is_equal = key == threshold.low;
    const uint32_t all_above = __ballot_sync(kFullWarp, is_above);
    const uint32_t all_equal = __ballot_sync(kFullWarp, is_equal);
    const int32_t equal_before = equal + __popc(all_equal & lower_lanes);
    if (is_above || (is_equal && equal_before < threshold.num_wanted)) {
      const int32_t above_before = above + __popc(all_above & lower_lanes);
      out[above_before + min(equal_before, threshold.num_wanted)] = page;
      counter.add(page);
    }
    above += __popc(all_above);
    equal += __popc(all_equal);
  });
}

// Writes the pages that need no scores (sinks and recent pages) and the length of the list.
__device__ inline void write_others(const SelectCall& call, const PageRanges& ranges, int32_t list,
                                    int32_t* out) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto num_threads = static_cast<int32_t>(blockDim.x);
  if (thread == 0) call.page_count[list] = ranges.num_taken();
  for (int32_t page = thread; page < ranges.sink_end; page += num_threads) out[page] = page;
  int32_t* recent = out + ranges.sink_end + ranges.num_top - ranges.recent_begin;
  for (int32_t page = ranges.recent_begin + thread; page < ranges.num_pages; page += num_threads) {
    recent[page] = page;
  }
}

// grid: one block per list, or with kClustered the blocks of a cluster, which share its candidates.
template <bool kClustered>
__global__ void __launch_bounds__(kThreads, 1) select(const SelectCall call) {
  let_next_kernel_start();
  __shared__ Shared shared;
  const unsigned num_blocks = kClustered ? ClusterBlocks::count() : 1;
  const bool is_first_block =
      !kClustered || ClusterBlocks::rank() == 0;  // writes what needs no scores
  const auto list = static_cast<int32_t>(blockIdx.x / num_blocks);
  const int32_t list_head = list / call.num_q_pages % call.num_list_heads;
  const int32_t seq = list / call.num_q_pages / call.num_list_heads;
  PageRanges ranges = find_ranges(call, seq, list % call.num_q_pages);
  if constexpr (kClustered) ClusterBlocks::sync();  // all blocks have begun and can be written to
  wait_for_earlier_work();                          // tables may be read before, scores may not
  // A list that does not fit is reported and left empty; readers of lists see a valid one.
  if (ranges.num_taken() > call.max_pages ||
      (ranges.num_top > 0 && ranges.recent_begin > call.max_scores)) {
    if (is_first_block && threadIdx.x == 0) fail_row(call.report, list);
    ranges = {0, 0, 0, 0};
  }
  int32_t* out = call.page_ids + static_cast<int64_t>(list) * call.max_pages;
  if (is_first_block) write_others(call, ranges, list, out);
  if (ranges.num_top == 0) return;
  // One list for all heads: its scores are sums over the heads.
  const bool is_shared = call.num_list_heads == 1;
  const int64_t first_head = static_cast<int64_t>(seq) * call.num_score_heads + list_head;
  const Candidates candidates{call.scores + first_head * call.max_scores, call.max_scores,
                              is_shared ? call.num_score_heads : 1, ranges.sink_end,
                              ranges.recent_begin};
  // Candidates are the pages between sinks and recent ones.
  const Keys keys(kClustered ? part_of_block(candidates) : candidates);
  const Range threshold = find_threshold<kClustered>(keys, ranges.num_top, shared);
  const ReadCounter counter{call.reads, call.block_ids + static_cast<int64_t>(seq) * call.max_ids,
                            call.pages_per_block};
  write_top<kClustered>(keys, threshold, out + ranges.sink_end, counter, shared);
}

SelectCall make_call(const SelectPagesArgs& args) {
  const bool has_scores = args.scores.present();
  const PageReads& reads = args.reads;
  const bool counts = reads.counts.present();
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
      .reads = counts ? reads.counts.data<int32_t>() : nullptr,
      .block_ids = counts ? reads.block_ids.data<int32_t>() : nullptr,
      .pages_per_block = counts ? static_cast<int32_t>(reads.counts.dim(1)) : 0,
      .max_ids = counts ? static_cast<int32_t>(reads.block_ids.dim(1)) : 0,
      .report = {},
  };
}

// Blocks per list: a power of two that holds its scores in registers, if the GPU has clusters,
// halved until all lists run at once.
int blocks_of_a_list(const cudaDeviceProp& gpu, int32_t max_scores, int64_t num_lists) {
  if (gpu.major < 9) return 1;
  const auto wanted = (static_cast<unsigned>(max_scores) + kHeldScores - 1) / kHeldScores;
  auto num_blocks = static_cast<int>(std::min<unsigned>(std::bit_ceil(wanted), kMaxListBlocks));
  while (num_blocks > 1 && num_blocks * num_lists > gpu.multiProcessorCount) num_blocks /= 2;
  return num_blocks;
}

}  // namespace

// Errors: a list that does not fit is reported by its number (sequence, head and query page, the
// last running fastest), and gets no pages.
void CudaOps::select_pages(Stream& on, const SelectPagesArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const auto num_lists = static_cast<unsigned>(args.pages.page_count.num_elements());
  if (num_lists == 0) return;
  stream.submit("select_pages", [&](cudaStream_t) {
    SelectCall call = make_call(args);
    call.report = stream.report("select_pages",
                                "list {} takes more pages than page_ids (or scores) has room for; "
                                "give page_ids more, or take fewer pages");
    const int num_blocks =
        blocks_of_a_list(stream.cuda_device().properties(), call.max_scores, num_lists);
    if (num_blocks > 1) {
      launch_early(stream, select<true>,
                   {.grid = dim3(num_lists * static_cast<unsigned>(num_blocks)),
                    .block = dim3(kThreads),
                    .cluster_blocks = num_blocks},
                   call);
      return;
    }
    // Without scores a list is two ranges of ids, for which few threads suffice.
    const unsigned threads = args.scores.present() ? kThreads : 128;
    launch_early(stream, select<false>, {.grid = dim3(num_lists), .block = dim3(threads)}, call);
  });
}

}  // namespace sluice::cuda
