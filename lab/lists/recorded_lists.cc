// Carries recorded lists over to other layers, heads and lengths.
#include "lab/lists/recorded_lists.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice::lab {
namespace {

// The place of a list among those that share a recorded one.
struct Copy {
  int64_t index = 0;
  int64_t num_copies = 1;

  // This copy's part of `whole`.
  int64_t share_of(int64_t whole) const { return whole * index / num_copies; }
};

int64_t copies_of(int64_t recorded, int64_t wanted) { return (wanted + recorded - 1) / recorded; }

Copy copy_of(const RecordedLists& lists, const ReplayTarget& target, int32_t layer, int32_t head) {
  const int64_t of_heads = copies_of(lists.num_heads, target.num_heads);
  return {.index = layer / lists.num_layers * of_heads + head / lists.num_heads,
          .num_copies = of_heads * copies_of(lists.num_layers, target.num_layers)};
}

// A map of candidates, one to one because `to` is at least `from`.
struct CandidateMap {
  int64_t sink_pages;
  int64_t shift;
  int64_t from;  // candidates of the record
  int64_t to;    // candidates of the target

  int32_t operator()(int32_t page) const {
    const int64_t turned = (page - sink_pages + shift) % from;
    return static_cast<int32_t>(sink_pages + turned * to / from);
  }
};

int64_t num_recorded_candidates(const RecordedLists& lists) {
  return lists.end_candidate(lists.num_steps - 1) - lists.rule.sink_pages;
}

int64_t num_target_candidates(const ReplayTarget& target) {
  return target.rule.first_recent_page(target.first_pos) - target.rule.page_rule.sink_pages;
}

// "1024 tokens by score in pages of 32, 1 page of sinks, 64 recent tokens".
std::string describe(const PageRule& rule, int32_t page_tokens) {
  return fmt::format("{} tokens chosen by score in pages of {}, {} of sinks, {} recent ones",
                     int64_t{rule.top_pages} * page_tokens, page_tokens,
                     int64_t{rule.sink_pages} * page_tokens, rule.recent_tokens);
}

}  // namespace

void check_replay(const RecordedLists& lists, const ReplayTarget& target) {
  const SelectionRule& rule = target.rule;
  if (!rule.makes_page_lists() || rule.page_rule.top_pages == 0) {
    fail(ErrorCode::kInvalidArgument, "no pages are chosen by score; take quest for decode");
  }
  const PageRule& ours = rule.page_rule;
  if (ours.top_pages != lists.rule.top_pages || ours.sink_pages != lists.rule.sink_pages ||
      ours.recent_tokens != lists.rule.recent_tokens || rule.page_tokens != lists.page_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "the recorded lists have {}, but those of the policy {}; give the options that they were "
         "recorded with",
         describe(lists.rule, lists.page_tokens), describe(ours, rule.page_tokens));
  }
  if (target.first_pos < ours.threshold_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "position {} is before sparse_threshold_tokens, {}, so nothing is chosen there; lower it, "
         "or give a longer context",
         target.first_pos, ours.threshold_tokens);
  }
  if (num_target_candidates(target) < num_recorded_candidates(lists)) {
    fail(ErrorCode::kInvalidArgument,
         "the lists were recorded in {} tokens and cannot be replayed in {}; give a longer context",
         lists.first_pos + lists.num_steps, target.first_pos);
  }
}

std::vector<int32_t> replayed_lists(const RecordedLists& lists, const ReplayTarget& target,
                                    int32_t layer) {
  std::vector<int32_t> table;
  table.reserve(
      static_cast<size_t>(int64_t{target.num_heads} * lists.num_steps * lists.rule.top_pages));
  const int64_t num_candidates = num_recorded_candidates(lists);
  for (int32_t head = 0; head < target.num_heads; ++head) {
    const Copy copy = copy_of(lists, target, layer, head);
    const CandidateMap map{.sink_pages = lists.rule.sink_pages,
                           .shift = copy.share_of(num_candidates),
                           .from = num_candidates,
                           .to = num_target_candidates(target)};
    const int64_t first_step = copy.share_of(lists.num_steps);
    for (int32_t step = 0; step < lists.num_steps; ++step) {
      const auto recorded_step = static_cast<int32_t>((first_step + step) % lists.num_steps);
      const auto begin = static_cast<std::ptrdiff_t>(table.size());
      for (const int32_t page :
           lists.list(recorded_step, layer % lists.num_layers, head % lists.num_heads)) {
        table.push_back(map(page));
      }
      std::sort(table.begin() + begin, table.end());  // turned texts begin in the middle
    }
  }
  return table;
}

}  // namespace sluice::lab
