// for_row_ranges: spreads the rows of a small op over the threads of a stream.
//
// Used by ops/cpu. Thread rule: called by the stream's worker inside a task.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/host/thread_team.h"

namespace sluice::cpu {

// Elements of a task: about 10 microseconds of a memory-bound op. Waking a helper thread for less
// costs more than it saves.
inline constexpr int64_t kElementsPerTask = 32768;

// Calls fn(begin, end) for disjoint ranges of rows that cover [0, num_rows), at least one row each.
// Calls run concurrently and in no order. `elements_per_row` is the cost of a row.
template <typename F>
void for_row_ranges(ThreadTeam& team, int64_t num_rows, int64_t elements_per_row, F&& fn) {
  const int64_t rows =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, elements_per_row));
  team.parallel_for((num_rows + rows - 1) / rows,
                    [&](int64_t task) { fn(task * rows, std::min(num_rows, (task + 1) * rows)); });
}

}  // namespace sluice::cpu
