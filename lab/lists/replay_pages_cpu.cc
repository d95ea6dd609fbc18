// Recorded pages over chosen ones on the CPU: a copy for each list.
//
// Bound by memory. Thread rule: enqueue only; lists run on the stream's team.
#include <algorithm>

#include "device/cpu/cpu_stream.h"
#include "lab/lists/replay_pages.h"
#include "ops/cpu/row_tasks.h"

namespace sluice::lab {
namespace {

struct ReplayCall {
  const int32_t* recorded;  // [num_list_heads][num_steps][top_pages]
  const int32_t* kv_end;    // [num_seqs]
  int32_t* page_ids;        // [num_seqs][num_list_heads][max_pages]
  int64_t num_list_heads;
  int64_t num_steps;
  int64_t top_pages;
  int64_t max_pages;
  int32_t first_pos;
  int32_t sink_pages;

  // Lists are numbered by sequence, then by head.
  void write_list(int64_t list) const {
    const int64_t since_first = int64_t{kv_end[list / num_list_heads]} - 1 - first_pos;
    if (since_first < 0) return;
    const int64_t step = list % num_list_heads * num_steps + since_first % num_steps;
    std::copy_n(recorded + step * top_pages, top_pages, page_ids + list * max_pages + sink_pages);
  }
};

}  // namespace

void replay_pages_on_cpu(Stream& stream, const ReplayPagesArgs& args) {
  const ReplayCall call{.recorded = args.recorded.data<int32_t>(),
                        .kv_end = args.kv_end.data<int32_t>(),
                        .page_ids = args.pages.page_ids.data<int32_t>(),
                        .num_list_heads = args.recorded.dim(0),
                        .num_steps = args.recorded.dim(1),
                        .top_pages = args.recorded.dim(2),
                        .max_pages = args.pages.page_ids.dim(3),
                        .first_pos = args.first_pos,
                        .sink_pages = args.rule.sink_pages};
  const int64_t num_lists = args.kv_end.dim(0) * call.num_list_heads;
  as_cpu(stream).submit("replay_pages", [call, num_lists](ThreadTeam& team) {
    cpu::for_row_ranges(team, num_lists, call.top_pages, [&](int64_t begin, int64_t end) {
      for (int64_t list = begin; list < end; ++list) call.write_list(list);
    });
  });
}

}  // namespace sluice::lab
