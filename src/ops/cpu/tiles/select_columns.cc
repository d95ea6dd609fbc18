// select_columns on the CPU: a partial sort per list and segment. Thread rule: enqueue only; lists
// run on the stream's team.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"

namespace sluice::cpu {
namespace {

// SelectColumnsArgs as plain pointers, captured by value in the task.
struct SelectColumnsCall {
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
  int32_t num_list_heads;
  int32_t num_scored;
  int32_t num_segments;
  int32_t max_columns;
  int32_t segment_tokens;
  int32_t first_segment;  // of the scores
  int32_t first_entry;    // of the scores, in the columns

  int64_t end_pos() const { return int64_t{*first_pos} + row_begin[1] - row_begin[0]; }
};

// Positions [begin, end) may become columns, `count` of them.
struct Candidates {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t count = 0;
};

Candidates candidates_of(const SelectColumnsCall& call, int32_t list, int32_t segment) {
  const int64_t begin = int64_t{call.first_segment + segment} * call.segment_tokens;
  const int64_t end = std::min(begin + call.segment_tokens, call.end_pos());
  if (begin < call.rule.threshold_tokens || begin >= end) return {};
  const int64_t last = call.rule.to_segment_end ? end : begin - call.rule.recent_tokens;
  return {.begin = call.rule.sink_tokens,
          .end = static_cast<int32_t>(std::max<int64_t>(0, last)),
          .count = static_cast<int32_t>(call.rule.most_columns(call.max_count[list], end))};
}

// Leaves `chosen` at its `count` largest, or fewer if these leave no more than the others may hold.
void keep_largest(const int32_t* scores, int64_t count, uint64_t allowed,
                  std::vector<int32_t>& chosen) {
  std::sort(chosen.begin(), chosen.end(), [&](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  uint64_t left = 0;
  for (const int32_t j : chosen) left += static_cast<uint64_t>(scores[j]);
  size_t num_kept = 0;
  while (num_kept < chosen.size() && std::cmp_less(num_kept, count) && left > allowed) {
    left -= static_cast<uint64_t>(scores[chosen[num_kept++]]);
  }
  chosen.resize(num_kept);
  std::sort(chosen.begin(), chosen.end());
}

void select_list(const SelectColumnsCall& call, int32_t list, int32_t segment) {
  const Candidates candidates = candidates_of(call, list, segment);
  const int32_t* scores =
      call.scores + (static_cast<int64_t>(list) * call.num_scored + segment) * call.num_positions;
  std::vector<int32_t> chosen;
  for (int32_t j = candidates.begin; j < candidates.end; ++j) {
    if (scores[j] > 0) chosen.push_back(j);
  }
  if (call.totals != nullptr) {
    const auto total =
        static_cast<uint64_t>(call.totals[int64_t{list} * call.num_scored + segment]);
    keep_largest(scores, candidates.count, total - share_of_total(total, call.share), chosen);
  } else if (std::ssize(chosen) > candidates.count) {
    std::nth_element(chosen.begin(), chosen.begin() + candidates.count, chosen.end(),
                     [&](int32_t a, int32_t b) {
                       return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                     });
    chosen.resize(static_cast<size_t>(candidates.count));
    std::sort(chosen.begin(), chosen.end());
  }
  SLUICE_CHECK(std::ssize(chosen) <= call.max_columns, "select_columns: {} of {} columns",
               chosen.size(), call.max_columns);
  const int64_t target =
      static_cast<int64_t>(list) * call.num_segments + call.first_entry + segment;
  std::copy(chosen.begin(), chosen.end(), call.positions + target * call.max_columns);
  call.count[target] = static_cast<int32_t>(chosen.size());
}

}  // namespace

void CpuOps::select_columns(Stream& stream, const SelectColumnsArgs& args) const {
  const TileColumns& columns = args.columns;
  const SelectColumnsCall call{
      .scores = args.scores.data<int32_t>(),
      .max_count = args.max_count.data<int32_t>(),
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .rule = args.rule,
      .positions = columns.positions.data<int32_t>(),
      .count = columns.count.data<int32_t>(),
      .totals = args.totals.present() ? args.totals.data<int64_t>() : nullptr,
      .share = args.share,
      .num_positions = args.scores.dim(2),
      .num_list_heads = static_cast<int32_t>(args.scores.dim(0)),
      .num_scored = static_cast<int32_t>(args.scores.dim(1)),
      .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
      .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
      .segment_tokens = columns.segment_tokens,
      .first_segment = args.first_segment,
      .first_entry = args.first_segment - columns.first_segment};
  as_cpu(stream).submit("select columns", [call](ThreadTeam& team) {
    team.parallel_for(int64_t{call.num_list_heads} * call.num_scored, [&](int64_t index) {
      select_list(call, static_cast<int32_t>(index / call.num_scored),
                  static_cast<int32_t>(index % call.num_scored));
    });
  });
}

}  // namespace sluice::cpu
