// RecordedLists: the page lists that a decode policy chose in consecutive steps of one sequence,
// and how they are carried over to another model and a longer text.
//
// Recorded by `sluice-lab overlap`, replayed by ListReplay (list_replay.h); the
// file format is list_file.h's. Thread rule: a value; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/selection_rule.h"

namespace sluice::lab {

// Pages that were chosen by score; sinks and recent pages are not recorded, since the rule gives
// them.
struct RecordedLists {
  std::string model;  // for messages
  int32_t num_layers = 0;
  int32_t num_heads = 0;  // lists of a layer: one for each KV head, or 1
  int32_t num_steps = 0;
  int64_t first_pos = 0;  // position of the row of step 0; each step's is one later
  int32_t page_tokens = 0;
  PageRule rule;                  // threshold_tokens is 0: no step is before it
  std::vector<int32_t> page_ids;  // [num_steps][num_layers][num_heads][rule.top_pages], each
                                  // list ascending

  std::span<const int32_t> list(int32_t step, int32_t layer, int32_t head) const {
    const int64_t index = (int64_t{step} * num_layers + layer) * num_heads + head;
    return std::span(page_ids).subspan(static_cast<size_t>(index * rule.top_pages),
                                       static_cast<size_t>(rule.top_pages));
  }

  // The pages that the step's lists were chosen among: [rule.sink_pages, end_candidate(step)).
  int32_t end_candidate(int32_t step) const {
    const SelectionRule whole{
        .form = SelectionForm::kPageLists, .page_rule = rule, .page_tokens = page_tokens};
    return static_cast<int32_t>(whole.first_recent_page(first_pos + step));
  }
};

// What lists are replayed in.
struct ReplayTarget {
  int32_t num_layers = 0;
  int32_t num_heads = 0;  // lists of a layer
  SelectionRule rule;     // of the policy whose lists are replaced
  int64_t first_pos = 0;  // position of the row that gets step 0
};

// Checks that the lists can be replayed there.
// Errors: kInvalidArgument for a policy without scores; another number of pages, page size, number
// of sinks or recent tokens; a first_pos before the threshold, or with fewer pages to choose among
// than the last recorded step had.
void check_replay(const RecordedLists& lists, const ReplayTarget& target);

// The lists of one layer of the target, [num_heads][num_steps][top_pages], each list ascending.
//
// Layer l takes those of layer l mod num_layers, head h those of head h mod num_heads of the
// record. The k-th of K lists that share one begins k / K of the steps later (and goes on with step
// 0 after the last), and its text is turned by k / K of the candidates, so that they differ. Then
// candidate c of C becomes candidate floor(c C' / C) of the target's C'. Both maps are one to one
// and the same in all steps. So a list has as many pages of the one before it, and of any other, as
// the recorded one has, but where the record ends and begins again. C is of the last recorded step
// and C' of first_pos: no page is a sink or a recent one in any step.
// REQUIRES: check_replay let them through.
std::vector<int32_t> replayed_lists(const RecordedLists& lists, const ReplayTarget& target,
                                    int32_t layer);

}  // namespace sluice::lab
