// The host's counts against lists written out page by page from the rule's definition.
#include "attention/list_sizes.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace sluice {
namespace {

// Pages that the definition in ops/page_selection.h names, `top_pages` of the others left open.
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

TEST(ListSizes, CountsAreThoseOfTheDefinition) {
  for_each_rule([](const PageRule& rule, int32_t page_tokens) {
    for (int64_t anchor = 0; anchor < 300; ++anchor) {
      const Named named = named_pages(rule, page_tokens, anchor);
      const int64_t others = named.num_pages - std::ssize(named.pages);
      EXPECT_EQ(num_listed_pages(rule, page_tokens, anchor),
                std::ssize(named.pages) + std::min<int64_t>(rule.top_pages, others));
    }
  });
}

TEST(ListSizes, TheLongestListIsLongEnoughAndNoLonger) {
  for_each_rule([](const PageRule& rule, int32_t page_tokens) {
    for (const int64_t max_tokens : {1, 40, 300}) {
      int64_t longest = 0;
      for (int64_t anchor = 0; anchor < max_tokens; ++anchor) {
        longest = std::max(longest, num_listed_pages(rule, page_tokens, anchor));
      }
      EXPECT_GE(max_listed_pages(rule, page_tokens, max_tokens), longest);
    }
    int64_t longest = 0;
    for (int64_t anchor = 0; anchor < 1000; ++anchor) {
      longest = std::max(longest, num_listed_pages(rule, page_tokens, anchor));
    }
    EXPECT_LE(max_listed_pages(rule, page_tokens, 1000), longest + 1) << "memory for nothing";
  });
}

TEST(ListSizes, NothingIsLeftOutThatALaterAnchorTakes) {
  for_each_rule([](const PageRule& rule, int32_t page_tokens) {
    constexpr int64_t kAnchor = 160;
    for (int64_t page = 0; page < kAnchor / page_tokens; ++page) {
      bool taken = rule.top_pages > 0;
      for (int64_t anchor = kAnchor; anchor < 300; ++anchor) {
        taken = taken || named_pages(rule, page_tokens, anchor).pages.contains(page);
      }
      EXPECT_EQ(may_list(rule, page_tokens, kAnchor, page * page_tokens, (page + 1) * page_tokens),
                taken);
    }
  });
}

}  // namespace
}  // namespace sluice
