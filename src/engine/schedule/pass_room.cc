// How long a span may be.
#include "engine/schedule/pass_room.h"

#include <algorithm>

namespace sluice {

PassRoom::PassRoom(const SchedulerLimits& limits, const PrefillRates& rates)
    : limits_(limits),
      rates_(rates),
      rows_left_(limits.max_num_batched_tokens),
      ns_left_(limits.max_stall_ns) {}

int64_t PassRoom::take(int64_t num_done, int64_t num_tokens) {
  // One span with history limits all rows of the pass: the softmax state covers every row.
  const bool carries = num_done > 0 && limits_.max_rows_with_history > 0;
  const int64_t rows_left =
      carries ? std::min(rows_left_, limits_.max_rows_with_history - num_used_) : rows_left_;
  const int64_t num_pending = num_tokens - num_done;
  int64_t num_rows = std::min(
      {num_pending, limits_.prefill_chunk_tokens, rows_left, rows_in_time(num_done, num_pending)});
  if (num_rows < num_pending) num_rows = aligned(num_done, std::max<int64_t>(num_rows, 0));
  if (num_rows <= 0) return 0;
  const int64_t block = limits_.row_block_tokens;
  rows_left_ = rows_left - (num_rows + block - 1) / block * block;
  num_used_ += num_rows;
  // Without a measurement the first span has all of the time.
  const auto cost = rates_.ns_per_row(num_done + num_rows / 2);
  ns_left_ -= cost ? static_cast<int64_t>(*cost * static_cast<double>(num_rows)) : ns_left_;
  return num_rows;
}

// Rows of a span that ends before its prompt does.
int64_t PassRoom::aligned(int64_t num_done, int64_t num_rows) const {
  const int64_t span = num_rows / limits_.span_align_tokens * limits_.span_align_tokens;
  const int64_t align = limits_.state_align_tokens;
  return std::max<int64_t>((num_done + span) / align * align - num_done, 0);
}

// Rows for which there is time. The first span of a pass is not shorter than min_span_tokens; a
// later one that would be waits, since a short span costs more for each row.
int64_t PassRoom::rows_in_time(int64_t num_done, int64_t num_pending) const {
  if (limits_.max_stall_ns == 0) return num_pending;
  const bool is_first = num_used_ == 0;
  if (!is_first && ns_left_ <= 0) return 0;
  const int64_t longest = std::min(num_pending, limits_.prefill_chunk_tokens);
  const int64_t num_rows = rates_.rows_within(num_done, ns_left_, longest);
  if (is_first) return std::max(num_rows, limits_.min_span_tokens);
  return num_rows == num_pending || num_rows >= limits_.min_span_tokens ? num_rows : 0;
}

}  // namespace sluice
