// SelectionRule's counts on the host against lists that are written out page by page from the
// rule's definition.
#include "attention/selection_rule.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// The pages that the definition in ops/pages/page_selection.h always selects. The `top_pages`
// others depend on scores.
struct Named {
  std::set<int64_t> pages;
  int64_t num_pages = 0;
};

Named named_pages(const PageRule& rule, int32_t page_tokens, int64_t anchor_pos) {
  Named named{.pages = {}, .num_pages = anchor_pos / page_tokens + 1};
  for (int64_t page = 0; page < named.num_pages; ++page) {
    bool is_recent = false;
    for (int64_t t = page * page_tokens; t < (page + 1) * page_tokens; ++t) {
      is_recent = is_recent || (t >= anchor_pos - rule.recent_tokens && t <= anchor_pos);
    }
    if (anchor_pos < rule.threshold_tokens || page < rule.sink_pages || is_recent) {
      named.pages.insert(page);
    }
  }
  return named;
}

// Every row has its own list, so a row's anchor is its position.
SelectionRule selection_rule(const PageRule& rule, int32_t page_tokens) {
  return {.form = SelectionForm::kPageLists, .page_rule = rule, .page_tokens = page_tokens};
}

// Calls `check(rule, page_tokens)` over a grid of rules.
template <typename F>
void for_each_rule(F check) {
  for (const int32_t page_tokens : {16, 32}) {
    for (const int32_t sinks : {0, 1, 3}) {
      for (const int32_t recent : {0, 1, 15, 16, 17, 100}) {
        for (const int32_t top : {0, 1, 4}) {
          for (const int32_t threshold : {0, 1, 33, 150}) {
            check(PageRule{.sink_pages = sinks,
                           .recent_tokens = recent,
                           .top_pages = top,
                           .threshold_tokens = threshold},
                  page_tokens);
          }
        }
      }
    }
  }
}

TEST(SelectionRule, CountsAreThoseOfTheDefinition) {
  for_each_rule([](const PageRule& rule, int32_t page_tokens) {
    for (int64_t anchor = 0; anchor < 300; ++anchor) {
      const Named named = named_pages(rule, page_tokens, anchor);
      const int64_t others = named.num_pages - std::ssize(named.pages);
      EXPECT_EQ(selection_rule(rule, page_tokens).num_listed_pages(anchor),
                std::ssize(named.pages) + std::min<int64_t>(rule.top_pages, others));
    }
  });
}

TEST(SelectionRule, TheLongestListIsLongEnoughAndNoLonger) {
  for_each_rule([](const PageRule& rule, int32_t page_tokens) {
    for (const int64_t max_tokens : {1, 40, 300}) {
      int64_t longest = 0;
      for (int64_t anchor = 0; anchor < max_tokens; ++anchor) {
        longest = std::max(longest, selection_rule(rule, page_tokens).num_listed_pages(anchor));
      }
      EXPECT_GE(selection_rule(rule, page_tokens).max_listed_pages(max_tokens), longest);
    }
    int64_t longest = 0;
    for (int64_t anchor = 0; anchor < 1000; ++anchor) {
      longest = std::max(longest, selection_rule(rule, page_tokens).num_listed_pages(anchor));
    }
    EXPECT_LE(selection_rule(rule, page_tokens).max_listed_pages(1000), longest + 1)
        << "memory for nothing";
  });
}

TEST(SelectionRule, NothingIsLeftOutThatALaterAnchorTakes) {
  for_each_rule([](const PageRule& rule, int32_t page_tokens) {
    constexpr int64_t kAnchor = 160;
    for (int64_t page = 0; page < kAnchor / page_tokens; ++page) {
      bool taken = rule.top_pages > 0;
      for (int64_t anchor = kAnchor; anchor < 300; ++anchor) {
        taken = taken || named_pages(rule, page_tokens, anchor).pages.contains(page);
      }
      EXPECT_EQ(selection_rule(rule, page_tokens)
                    .may_select(kAnchor, page * page_tokens, (page + 1) * page_tokens),
                taken);
    }
  });
}

TEST(SelectionRule, RowsOfAQueryPageShareItsAnchor) {
  SelectionRule rule = selection_rule({.sink_pages = 1, .recent_tokens = 32}, 16);
  rule.q_page_tokens = 16;
  for (int64_t position = 0; position < 300; ++position) {
    const int64_t anchor = position / 16 * 16;
    EXPECT_EQ(rule.num_listed_pages(position),
              std::ssize(named_pages(rule.page_rule, 16, anchor).pages));
    EXPECT_EQ(rule.num_selected_tokens(position),
              (rule.num_listed_pages(position) - 1) * 16 + position % 16 + 1);
  }
}

TEST(SelectionRule, WithoutListsEverythingIsSelected) {
  const SelectionRule everything;
  EXPECT_FALSE(everything.selects());
  EXPECT_EQ(everything.num_selected_tokens(99), 100);
  EXPECT_EQ(everything.max_selected_tokens(100), 100);
  EXPECT_TRUE(everything.selects_all(100));
  EXPECT_TRUE(everything.may_select(64, 0, 16));
}

// Only the device knows the mask, so the host must assume that every tile is selected.
TEST(SelectionRule, TileMasksMaySelectAnything) {
  const SelectionRule masks{.form = SelectionForm::kTileMasks};
  EXPECT_TRUE(masks.selects());
  EXPECT_EQ(masks.num_selected_tokens(99), std::nullopt);
  EXPECT_EQ(masks.max_selected_tokens(100), 100);
  EXPECT_FALSE(masks.selects_all(100));
  EXPECT_TRUE(masks.may_select(128, 0, 128));
}

}  // namespace
}  // namespace sluice
