// replay_pages: an op of the laboratory, which puts recorded pages into page lists.
//
// Used by ListReplay. The rules of ops/ops.h hold: it enqueues and returns. The kernels are
// replay_pages_cpu.cc and cuda/replay_pages.cu; a build without CUDA links cuda/absent.cc. Thread
// rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "ops/pages/page_selection.h"

namespace sluice::lab {

struct ReplayPagesArgs {
  TensorView recorded;  // i32 [num_list_heads, num_steps, top_pages]: each ascending, of the pages
                        // that the rule chooses among for the row at first_pos
  int32_t first_pos = 0;  // position of the row that gets step 0
  TensorView kv_end;      // i32 [num_seqs]: the sequence's last row is at kv_end - 1
  PageRule rule;          // by which `pages` were made
  PageList pages;         // of select_pages; page_ids is written
};

// Of each sequence whose last row r is at first_pos or later, the entries of all lists that the
// rule takes by score become those of step (r - first_pos) mod num_steps. Sinks, recent pages and
// counts stay. The step is read on the device, so that a graph replays another one at each launch.
// Shapes: recorded.top_pages is rule.top_pages; pages has num_list_heads lists of a row each
// (q_page_tokens 0, num_q_pages 1) with room for sinks and top_pages.
// Types: i32 tables and ids.
// Aliasing: `pages` overlaps nothing.
// Order: after select_pages, in stream order.
// Errors: those of every op (ops/ops.h); first_pos before the rule's threshold is a failed check.
void replay_pages(Stream& stream, const ReplayPagesArgs& args);

// The kernels; `args` have passed the shape contract of replay_pages.
void replay_pages_on_cpu(Stream& stream, const ReplayPagesArgs& args);
void replay_pages_on_cuda(Stream& stream, const ReplayPagesArgs& args);

}  // namespace sluice::lab
