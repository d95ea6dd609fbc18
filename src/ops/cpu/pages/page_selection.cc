// From scores to lists on the CPU: which pages the rule takes, ascending.
//
// Lists do not depend on each other. Cost per list: one pass over the scores and a selection of the
// nth element, linear on average. Thread rule: enqueue only; lists run on the stream's team, with
// candidates in the scratch of its thread.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/thread_scratch.h"

namespace sluice::cpu {
namespace {

struct SelectCall {
  const float* scores;       // [num_seqs][num_score_heads][max_scores]; null: no top pages
  const int32_t* first_pos;  // [num_seqs]
  const int32_t* kv_end;     // [num_seqs]
  PageRule rule;
  int32_t* page_ids;    // [num_seqs][num_list_heads][num_q_pages][max_pages]
  int32_t* page_count;  // [num_seqs][num_list_heads][num_q_pages]
  int32_t num_seqs;
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
};

struct ListId {
  int32_t seq;
  int32_t head;
  int32_t q_page;  // counted from the one that holds the sequence's first row
};

// What the rule takes: pages below sink_end, num_top of [sink_end, recent_begin), and
// [recent_begin, num_pages).
struct PageRanges {
  int32_t sink_end;
  int32_t num_top;
  int32_t recent_begin;
  int32_t num_pages;

  int32_t num_taken() const { return sink_end + num_top + num_pages - recent_begin; }
};

// Applies PageRule (ops/pages/page_selection.h) to one list. Where all candidates would be taken
// anyway, no scores are needed and the list is all pages.
PageRanges ranges_of(const SelectCall& call, const ListId& list) {
  const int32_t last_row = call.kv_end[list.seq] - 1;
  int32_t anchor = last_row;
  int32_t end = last_row;
  if (call.q_page_tokens > 0) {
    anchor = (call.first_pos[list.seq] / call.q_page_tokens + list.q_page) * call.q_page_tokens;
    end = anchor + call.q_page_tokens - 1;
  }
  if (last_row < 0 || anchor > last_row) return {};  // the sequence has no such rows
  const int32_t num_pages = end / call.page_tokens + 1;
  const int32_t recent_begin = std::max(0, anchor - call.rule.recent_tokens) / call.page_tokens;
  const int32_t sink_end = std::min(call.rule.sink_pages, recent_begin);
  const bool takes_all =
      anchor < call.rule.threshold_tokens || call.rule.top_pages >= recent_begin - sink_end;
  if (takes_all) return {.num_pages = num_pages};
  return {sink_end, call.rule.top_pages, recent_begin, num_pages};
}

struct Candidate {
  float score;
  int32_t page;
};

// A page's score for a list: its head's, or the sum over the heads that share the list.
float score_for_list(const SelectCall& call, const ListId& list, int32_t page) {
  const int32_t num_summed = call.num_list_heads == 1 ? call.num_score_heads : 1;
  const int64_t head = static_cast<int64_t>(list.seq) * call.num_score_heads + list.head;
  const float* score = call.scores + head * call.max_scores + page;
  float sum = *score;
  for (int32_t h = 1; h < num_summed; ++h) sum += score[static_cast<int64_t>(h) * call.max_scores];
  return std::isnan(sum) ? -std::numeric_limits<float>::infinity() : sum;
}

// Atomic, since lists of other heads may count the same page at the same time.
void count_reads(const SelectCall& call, int32_t seq, std::span<const int32_t> pages) {
  const int32_t* ids = call.block_ids + static_cast<int64_t>(seq) * call.max_ids;
  for (const int32_t page : pages) {
    const int64_t row = ids[page / call.pages_per_block];
    int32_t& count = call.reads[row * call.pages_per_block + page % call.pages_per_block];
    std::atomic_ref(count).fetch_add(1, std::memory_order_relaxed);
  }
}

// Writes the best `num_top` pages of [begin, end), ascending.
void take_top(const SelectCall& call, const ListId& list, const PageRanges& ranges, int32_t* out) {
  SLUICE_CHECK(ranges.recent_begin <= call.max_scores,
               "select_pages: sequence {} has {} pages before the recent ones, scores hold {}",
               list.seq, ranges.recent_begin, call.max_scores);
  // Scratch for max_scores candidates, whatever the list: the thread then allocates once.
  auto* candidates = reinterpret_cast<Candidate*>(
      thread_scratch(static_cast<size_t>(call.max_scores) * sizeof(Candidate)));
  Candidate* end = candidates;
  for (int32_t page = ranges.sink_end; page < ranges.recent_begin; ++page) {
    *end++ = {score_for_list(call, list, page), page};
  }
  // The order is total, so which pages come before the nth does not depend on the algorithm.
  std::nth_element(candidates, candidates + ranges.num_top, end,
                   [](const Candidate& a, const Candidate& b) {
                     return a.score > b.score || (a.score == b.score && a.page < b.page);
                   });
  for (int32_t i = 0; i < ranges.num_top; ++i) out[i] = candidates[i].page;
  std::sort(out, out + ranges.num_top);
  if (call.reads != nullptr) {
    count_reads(call, list.seq, {out, static_cast<size_t>(ranges.num_top)});
  }
}

// Writes list `index`: sinks, the best of the middle, recent pages. Sorted, since each part is.
void write_list(const SelectCall& call, int64_t index) {
  const int64_t head_index = index / call.num_q_pages;
  // Lists are numbered by sequence, head and query page, the last running fastest.
  const ListId list{.seq = static_cast<int32_t>(head_index / call.num_list_heads),
                    .head = static_cast<int32_t>(head_index % call.num_list_heads),
                    .q_page = static_cast<int32_t>(index % call.num_q_pages)};
  const PageRanges ranges = ranges_of(call, list);
  if (ranges.num_taken() > call.max_pages) {
    fail(ErrorCode::kDoesNotFit,
         "select_pages: sequence {}, head {}, query page {} takes {} pages, but its list has room "
         "for {}; give page_ids more, or take fewer pages",
         list.seq, list.head, list.q_page, ranges.num_taken(), call.max_pages);
  }
  int32_t* out = call.page_ids + index * call.max_pages;
  std::iota(out, out + ranges.sink_end, 0);
  out += ranges.sink_end;
  if (ranges.num_top > 0) take_top(call, list, ranges, out);
  out += ranges.num_top;
  std::iota(out, out + ranges.num_pages - ranges.recent_begin, ranges.recent_begin);
  call.page_count[index] = ranges.num_taken();
}

// Without scores top_pages is 0 (shape contract), so the zeros for their dims are never used.
SelectCall make_call(const SelectPagesArgs& args) {
  SelectCall call{.scores = nullptr,
                  .first_pos = args.batch.first_pos.data<int32_t>(),
                  .kv_end = args.kv_end.data<int32_t>(),
                  .rule = args.rule,
                  .page_ids = args.pages.page_ids.data<int32_t>(),
                  .page_count = args.pages.page_count.data<int32_t>(),
                  .num_seqs = static_cast<int32_t>(args.pages.page_ids.dim(0)),
                  .num_list_heads = static_cast<int32_t>(args.pages.page_ids.dim(1)),
                  .num_q_pages = static_cast<int32_t>(args.pages.page_ids.dim(2)),
                  .max_pages = static_cast<int32_t>(args.pages.page_ids.dim(3)),
                  .num_score_heads = 0,
                  .max_scores = 0,
                  .page_tokens = args.pages.page_tokens,
                  .q_page_tokens = args.pages.q_page_tokens,
                  .reads = nullptr,
                  .block_ids = nullptr,
                  .pages_per_block = 0,
                  .max_ids = 0};
  if (args.reads.counts.present()) {
    call.reads = args.reads.counts.data<int32_t>();
    call.block_ids = args.reads.block_ids.data<int32_t>();
    call.pages_per_block = static_cast<int32_t>(args.reads.counts.dim(1));
    call.max_ids = static_cast<int32_t>(args.reads.block_ids.dim(1));
  }
  if (args.scores.present()) {
    call.scores = args.scores.data<float>();
    call.num_score_heads = static_cast<int32_t>(args.scores.dim(1));
    call.max_scores = static_cast<int32_t>(args.scores.dim(2));
  }
  return call;
}

}  // namespace

void CpuOps::select_pages(Stream& stream, const SelectPagesArgs& args) const {
  as_cpu(stream).submit("select_pages", [call = make_call(args)](ThreadTeam& team) {
    const int64_t num_lists =
        static_cast<int64_t>(call.num_seqs) * call.num_list_heads * call.num_q_pages;
    // Selecting among n candidates costs about as much as 8 n elements of a memory-bound op.
    const int64_t list_elements = call.max_pages + int64_t{8} * call.max_scores;
    for_row_ranges(team, num_lists, list_elements, [&](int64_t begin, int64_t end) {
      for (int64_t index = begin; index < end; ++index) write_list(call, index);
    });
  });
}

}  // namespace sluice::cpu
