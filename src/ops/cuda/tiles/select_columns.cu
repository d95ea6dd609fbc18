// select_columns on CUDA: a block of threads for each list head and segment.
//
// Bound: reads of the scores: two where a short list holds all that may be taken
// (tiles/shortlist.cuh), else six (tiles/largest.cuh), and more with totals. Thread rule: enqueue
// only.
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/largest.cuh"
#include "ops/cuda/tiles/shortlist.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 1024;

// SelectColumnsArgs as plain pointers and sizes.
struct SelectCall {
  const int32_t* scores;     // [num_list_heads][num_scored][num_positions]
  const int32_t* max_count;  // [num_list_heads]
  const int32_t* row_begin;
  const int32_t* first_pos;
  ColumnRule rule;
  int32_t* positions;     // [num_list_heads][num_segments][max_columns]
  int32_t* count;         // [num_list_heads][num_segments]
  const int64_t* totals;  // [num_list_heads][num_scored]; null: as many as there may be
  uint32_t share;         // of the total
  int64_t num_positions;
  int32_t num_scored;
  int32_t num_segments;
  int32_t max_columns;
  int32_t segment_tokens;
  int32_t first_segment;  // of the scores
  int32_t first_entry;    // of the scores, in the columns
  CudaReport report;
};

using LargestScores = Largest<kThreads, int32_t>;

// Positions that may become columns of a segment.
__device__ inline Candidates candidates_of(const SelectCall& call, int32_t list, int32_t segment) {
  const int64_t begin = static_cast<int64_t>(call.first_segment + segment) * call.segment_tokens;
  const int64_t end_pos =
      static_cast<int64_t>(*call.first_pos) + call.row_begin[1] - call.row_begin[0];
  const int64_t end = min(begin + call.segment_tokens, end_pos);
  if (begin < call.rule.threshold_tokens || begin >= end) return {};
  const int64_t last = call.rule.to_segment_end ? end : begin - call.rule.recent_tokens;
  return {call.rule.sink_tokens, static_cast<int32_t>(max(last, static_cast<int64_t>(0))),
          static_cast<int32_t>(call.rule.most_columns(call.max_count[list], end))};
}

struct Shared {
  LargestScores::Shared largest;
  Shortlist list;
};

// Writes the positions of a segment and how many they are. `list` is null, or has the positions of
// the scores that `largest` searches.
__device__ inline void write_columns(LargestScores& largest, const Shortlist* list,
                                     int32_t* positions, int32_t& count) {
  const LargestCut<int32_t> cut = largest.find_cut();
  if (threadIdx.x == 0) count = cut.count;
  if (cut.count == 0) return;
  largest.for_each_taken(cut, [=](int32_t rank, int32_t j) {
    positions[rank] = list == nullptr ? j : list->places[j];
  });
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
  int32_t* positions = call.positions + target * call.max_columns;
  // Sums need all scores.
  if (call.totals == nullptr && candidates.count > 0 &&
      candidates.end - candidates.begin > kShortlistNumbers &&
      make_shortlist<kThreads>(scores, candidates.begin, candidates.end, candidates.count,
                               shared.largest.bins, shared.list)) {
    LargestScores largest(shared.list.numbers, {0, shared.list.count, candidates.count},
                          shared.largest);
    write_columns(largest, &shared.list, positions, call.count[target]);
    return;
  }
  LargestScores largest(scores, candidates, shared.largest);
  if (call.totals != nullptr && candidates.count > 0) {
    const auto total = static_cast<uint64_t>(call.totals[list * call.num_scored + segment]);
    largest.leave_at_most(total - share_of_total(total, call.share));
  }
  write_columns(largest, nullptr, positions, call.count[target]);
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
                  .totals = args.totals.present() ? args.totals.data<int64_t>() : nullptr,
                  .share = args.share,
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
