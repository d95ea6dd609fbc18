// select_columns on CUDA: a block of threads for each list head and segment.
//
// Bound: reads of the scores, one for each bit of the largest score and two more. The smallest
// score that is taken is found by a search over bits with counts of integers; a second pass writes
// positions in ascending order, each warp those of its own range. Thread rule: enqueue only.
#include <algorithm>

#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/block_reducer.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kNumWarps = kThreads / kWarpThreads;
using Reducer = BlockReducer<kThreads>;

// SelectColumnsArgs as plain pointers and sizes.
struct SelectCall {
  const int32_t* scores;     // [num_list_heads][num_scored][num_positions]
  const int32_t* max_count;  // [num_list_heads]
  const int32_t* row_begin;
  const int32_t* first_pos;
  ColumnRule rule;
  int32_t* positions;  // [num_list_heads][num_segments][max_columns]
  int32_t* count;      // [num_list_heads][num_segments]
  int64_t num_positions;
  int32_t num_scored;
  int32_t num_segments;
  int32_t max_columns;
  int32_t segment_tokens;
  int32_t first_segment;  // of the scores
  int32_t first_entry;    // of the scores, in the columns
  CudaReport report;
};

struct Shared {
  Reducer::Shared reducer;
  int32_t num_above[kNumWarps];  // candidates with more than the threshold
  int32_t num_equal[kNumWarps];  // and with as much
};

// Positions [begin, end) may become columns, `count` of them.
struct Candidates {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t count = 0;
};

__device__ inline Candidates candidates_of(const SelectCall& call, int32_t list, int32_t segment) {
  const int64_t begin = static_cast<int64_t>(call.first_segment + segment) * call.segment_tokens;
  const int64_t end_pos =
      static_cast<int64_t>(*call.first_pos) + call.row_begin[1] - call.row_begin[0];
  const int64_t end = min(begin + call.segment_tokens, end_pos);
  if (begin < call.rule.threshold_tokens || begin >= end) return {};
  const int64_t last = call.rule.to_segment_end ? end : begin - call.rule.recent_tokens;
  return {call.rule.sink_tokens, static_cast<int32_t>(max(last, static_cast<int64_t>(0))),
          call.max_count[list]};
}

// What is taken: every score above the threshold, and the first `num_equal` of those equal to it.
struct Cut {
  int32_t threshold = 1;
  int32_t num_equal = 0;
  int32_t count = 0;  // of all
};

// Candidates with at least a score. REQUIRES: every thread calls it.
__device__ inline int32_t count_from(const int32_t* scores, const Candidates& candidates,
                                     int32_t least, Reducer& reducer) {
  int32_t count = 0;
#pragma unroll 8
  for (int32_t j = candidates.begin + static_cast<int32_t>(threadIdx.x); j < candidates.end;
       j += kThreads) {
    count += scores[j] >= least ? 1 : 0;
  }
  return static_cast<int32_t>(reducer.sum(static_cast<uint64_t>(count)));
}

__device__ inline int32_t largest_of(const int32_t* scores, const Candidates& candidates,
                                     Reducer& reducer) {
  int32_t largest = 0;
#pragma unroll 8
  for (int32_t j = candidates.begin + static_cast<int32_t>(threadIdx.x); j < candidates.end;
       j += kThreads) {
    largest = max(largest, scores[j]);
  }
  return static_cast<int32_t>(reducer.max(static_cast<uint64_t>(largest)));
}

__device__ inline Cut find_cut(const int32_t* scores, const Candidates& candidates,
                               Reducer& reducer) {
  const int32_t num_positive = count_from(scores, candidates, 1, reducer);
  Cut cut{.count = min(num_positive, candidates.count)};
  if (cut.count <= 0) return {};
  if (cut.count < num_positive) {
    // The largest score that at least `count` candidates reach: 1 or more.
    const int32_t largest = largest_of(scores, candidates, reducer);
    cut.threshold = 0;
    for (int32_t bit = 1 << (31 - __clz(largest)); bit != 0; bit /= 2) {
      if (count_from(scores, candidates, cut.threshold | bit, reducer) >= cut.count) {
        cut.threshold |= bit;
      }
    }
  }
  // A threshold of kMaxColumnScore has nothing above it, and no next number.
  const int32_t num_above = static_cast<uint32_t>(cut.threshold) == kMaxColumnScore
                                ? 0
                                : count_from(scores, candidates, cut.threshold + 1, reducer);
  cut.num_equal = cut.count - num_above;
  return cut;
}

// Writes the positions that are taken, ascending. A warp's range follows those of lower warps.
// REQUIRES: every thread calls it.
__device__ inline void write_positions(const int32_t* scores, const Candidates& candidates,
                                       const Cut& cut, Shared& shared, int32_t* positions) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpThreads);
  const int32_t num_candidates = max(candidates.end - candidates.begin, 0);
  const int32_t of_warp = ((num_candidates + kNumWarps - 1) / kNumWarps + kWarpThreads - 1) /
                          kWarpThreads * kWarpThreads;
  const int32_t begin = candidates.begin + min(warp * of_warp, num_candidates);
  const int32_t end = candidates.begin + min((warp + 1) * of_warp, num_candidates);
  int32_t num_above = 0;
  int32_t num_equal = 0;
  for (int32_t first = begin; first < end; first += kWarpThreads) {
    const int32_t score = first + lane < end ? scores[first + lane] : 0;
    num_above += __popc(__ballot_sync(kFullWarp, score > cut.threshold));
    num_equal += __popc(__ballot_sync(kFullWarp, score == cut.threshold));
  }
  if (lane == 0) {
    shared.num_above[warp] = num_above;
    shared.num_equal[warp] = num_equal;
  }
  __syncthreads();
  int32_t above = 0;  // before the position at hand
  int32_t equal = 0;
  for (int32_t i = 0; i < warp; ++i) {
    above += shared.num_above[i];
    equal += shared.num_equal[i];
  }

  const uint32_t lower_lanes = (1u << lane) - 1;
  for (int32_t first = begin; first < end; first += kWarpThreads) {
    const int32_t score = first + lane < end ? scores[first + lane] : 0;
    const uint32_t all_above = __ballot_sync(kFullWarp, score > cut.threshold);
    const uint32_t all_equal = __ballot_sync(kFullWarp, score == cut.threshold);
    const int32_t own_above = above + __popc(all_above & lower_lanes);
    const int32_t own_equal = equal + __popc(all_equal & lower_lanes);
    const bool is_taken =
        score > cut.threshold || (score == cut.threshold && own_equal < cut.num_equal);
    if (is_taken) positions[own_above + min(own_equal, cut.num_equal)] = first + lane;
    above += __popc(all_above);
    equal += __popc(all_equal);
  }
}

// grid: segments, then list heads.
__global__ void __launch_bounds__(kThreads) select_columns_kernel(const SelectCall call) {
  __shared__ Shared shared;
  const auto segment = static_cast<int32_t>(blockIdx.x);
  const auto list = static_cast<int32_t>(blockIdx.y);
  const int32_t* scores =
      call.scores + (static_cast<int64_t>(list) * call.num_scored + segment) * call.num_positions;
  const int64_t target =
      static_cast<int64_t>(list) * call.num_segments + call.first_entry + segment;
  Candidates candidates = candidates_of(call, list, segment);
  if (candidates.count > call.max_columns || candidates.end > call.num_positions) {
    if (threadIdx.x == 0) fail_row(call.report, call.first_segment + segment);
    candidates = {};
  }
  Reducer reducer(shared.reducer);
  const Cut cut = find_cut(scores, candidates, reducer);
  if (threadIdx.x == 0) call.count[target] = cut.count;
  if (cut.count == 0) return;
  write_positions(scores, candidates, cut, shared, call.positions + target * call.max_columns);
}

}  // namespace

void CudaOps::select_columns(Stream& on, const SelectColumnsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const TileColumns& columns = args.columns;
  SelectCall call{.scores = args.scores.data<int32_t>(),
                  .max_count = args.max_count.data<int32_t>(),
                  .row_begin = args.batch.row_begin.data<int32_t>(),
                  .first_pos = args.batch.first_pos.data<int32_t>(),
                  .rule = args.rule,
                  .positions = columns.positions.data<int32_t>(),
                  .count = columns.count.data<int32_t>(),
                  .num_positions = args.scores.dim(2),
                  .num_scored = static_cast<int32_t>(args.scores.dim(1)),
                  .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
                  .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
                  .segment_tokens = columns.segment_tokens,
                  .first_segment = args.first_segment,
                  .first_entry = args.first_segment - columns.first_segment};
  if (args.scores.num_elements() == 0) return;
  stream.submit("select_columns", [&](cudaStream_t handle) {
    call.report = stream.report("select_columns",
                                "segment {} has more columns than max_columns, or fewer scores "
                                "than positions; give room for max_count columns and scores of all "
                                "keys");
    const dim3 grid(static_cast<unsigned>(call.num_scored),
                    static_cast<unsigned>(args.scores.dim(0)));
    select_columns_kernel<<<grid, kThreads, 0, handle>>>(call);
  });
}

}  // namespace sluice::cuda
