// Recorded lists made by hand, whose steps share most pages.
//
// Used by the tests of recorded lists, of their replay and of their file. Thread rule: pure
// functions.
#pragma once

#include <algorithm>
#include <random>

#include "lab/lists/recorded_lists.h"

namespace sluice::lab {

inline constexpr PageRule kRecordRule{.sink_pages = 1, .recent_tokens = 16, .top_pages = 4};

inline SelectionRule rule_of(const PageRule& rule) {
  return {.form = SelectionForm::kPageLists, .page_rule = rule, .page_tokens = 16};
}

// 12 steps after 400 tokens in pages of 16. A step replaces one page of the list before by a random
// one.
inline RecordedLists make_lists(int32_t num_layers = 2, int32_t num_heads = 2,
                                int32_t num_steps = 12) {
  RecordedLists lists{.model = "made",
                      .num_layers = num_layers,
                      .num_heads = num_heads,
                      .num_steps = num_steps,
                      .first_pos = 400,
                      .page_tokens = 16,
                      .rule = kRecordRule,
                      .page_ids = {}};
  std::mt19937 generator(7);
  const auto num_lists = static_cast<size_t>(num_layers * num_heads);
  std::vector<std::vector<int32_t>> now(num_lists, {2, 5, 9, 21});
  for (int32_t step = 0; step < num_steps; ++step) {
    for (std::vector<int32_t>& list : now) {
      const auto end = static_cast<uint32_t>(lists.end_candidate(0) - 1);
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(generator() % list.size()));
      while (list.size() < 4) {
        const auto page = static_cast<int32_t>(1 + generator() % end);
        if (std::ranges::find(list, page) == list.end()) list.push_back(page);
      }
      std::ranges::sort(list);
      lists.page_ids.insert(lists.page_ids.end(), list.begin(), list.end());
    }
  }
  return lists;
}

}  // namespace sluice::lab
