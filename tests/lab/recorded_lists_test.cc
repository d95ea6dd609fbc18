// Lists keep what they have in common when they are carried over to another model and length.
#include "lab/lists/recorded_lists.h"

#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "core/error.h"
#include "lab/recorded_lists_maker.h"

namespace sluice::lab {
namespace {

std::vector<int32_t> list_at(const std::vector<int32_t>& table, const RecordedLists& lists,
                             int32_t head, int32_t step) {
  const auto begin = (head * lists.num_steps + step) * lists.rule.top_pages;
  return {table.begin() + begin, table.begin() + begin + lists.rule.top_pages};
}

int64_t num_common(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return std::ssize(both);
}

ReplayTarget target_of(int64_t first_pos, int32_t num_layers = 2, int32_t num_heads = 2) {
  return {.num_layers = num_layers,
          .num_heads = num_heads,
          .rule = rule_of(kRecordRule),
          .first_pos = first_pos};
}

TEST(RecordedLists, TheSameShapeAndLengthGivesTheSameLists) {
  const RecordedLists lists = make_lists();
  // Its candidates are those of the last recorded step.
  const ReplayTarget target = target_of(lists.first_pos + lists.num_steps - 1);
  for (int32_t layer = 0; layer < lists.num_layers; ++layer) {
    const std::vector<int32_t> table = replayed_lists(lists, target, layer);
    for (int32_t head = 0; head < lists.num_heads; ++head) {
      for (int32_t step = 0; step < lists.num_steps; ++step) {
        const std::span<const int32_t> recorded = lists.list(step, layer, head);
        EXPECT_EQ(list_at(table, lists, head, step),
                  (std::vector<int32_t>(recorded.begin(), recorded.end())));
      }
    }
  }
}

// Every list: ascending, and of pages that the rule chooses among at the first step and later.
TEST(RecordedLists, PagesAreNeitherSinksNorRecentInALongerText) {
  const RecordedLists lists = make_lists();
  for (const int64_t first_pos : {430, 512, 1000, 100000, 1 << 20}) {
    const ReplayTarget target = target_of(first_pos, 5, 4);
    const int64_t end = target.rule.first_recent_page(first_pos);
    int32_t largest = 0;
    for (int32_t layer = 0; layer < target.num_layers; ++layer) {
      const std::vector<int32_t> table = replayed_lists(lists, target, layer);
      ASSERT_EQ(std::ssize(table),
                int64_t{target.num_heads} * lists.num_steps * lists.rule.top_pages);
      for (int32_t i = 0; i < target.num_heads * lists.num_steps; ++i) {
        const auto list = list_at(table, lists, 0, i);
        EXPECT_TRUE(std::ranges::is_sorted(list, std::less_equal<>())) << "strictly ascending";
        EXPECT_GE(list.front(), lists.rule.sink_pages);
        EXPECT_LT(list.back(), end);
        largest = std::max(largest, list.back());
      }
    }
    EXPECT_GT(largest, end * 9 / 10) << "pages spread over the whole text";
  }
}

// The shares of every earlier step are those of the record, not of the step before alone.
TEST(RecordedLists, StepsHaveInCommonWhatTheRecordedOnesHave) {
  const RecordedLists lists = make_lists();
  const ReplayTarget target = target_of(70000, 5, 3);
  int64_t num_shared = 0;
  for (int32_t layer = 0; layer < target.num_layers; ++layer) {
    const std::vector<int32_t> table = replayed_lists(lists, target, layer);
    for (int32_t head = 0; head < target.num_heads; ++head) {
      // Copies begin at k / K of the steps: K = 3 of layers x 2 of heads.
      const int32_t copy = layer / 2 * 2 + head / 2;
      const int32_t first = lists.num_steps * copy / 6;
      for (int32_t step = 1; step < lists.num_steps; ++step) {
        for (int32_t before = 0; before < step; ++before) {
          const auto recorded = [&](int32_t s) {
            return lists.list((first + s) % lists.num_steps, layer % 2, head % 2);
          };
          const int64_t common =
              num_common(list_at(table, lists, head, step), list_at(table, lists, head, before));
          ASSERT_EQ(common, num_common(recorded(step), recorded(before)))
              << "layer " << layer << ", head " << head << ", steps " << step << ", " << before;
          num_shared += common;
        }
      }
    }
  }
  EXPECT_GT(num_shared, 0);
}

TEST(RecordedLists, CopiesOfAListDiffer) {
  const RecordedLists lists = make_lists();
  const ReplayTarget target = target_of(70000, 8, 2);
  std::set<std::vector<int32_t>> different;
  for (int32_t layer = 0; layer < target.num_layers; ++layer) {
    const std::vector<int32_t> table = replayed_lists(lists, target, layer);
    for (int32_t head = 0; head < target.num_heads; ++head) {
      different.insert(list_at(table, lists, head, 0));
    }
  }
  EXPECT_EQ(different.size(), 16u);
}

std::string refusal(const RecordedLists& lists, const ReplayTarget& target) {
  try {
    check_replay(lists, target);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  }
  return "none";
}

TEST(RecordedLists, WhatDoesNotFitIsRefused) {
  const RecordedLists lists = make_lists();
  EXPECT_EQ(refusal(lists, target_of(430)), "none");
  PageRule other = kRecordRule;
  other.top_pages += 1;
  ReplayTarget target = target_of(430);
  target.rule = rule_of(other);
  EXPECT_EQ(refusal(lists, target),
            "the recorded lists have 64 tokens chosen by score in pages of 16, 16 of sinks, 16 "
            "recent ones, but those of the policy 80 tokens chosen by score in pages of 16, 16 of "
            "sinks, 16 recent ones; give the options that they were recorded with");
  target = target_of(430);
  target.rule.page_tokens = 32;
  EXPECT_NE(refusal(lists, target).find("128 tokens chosen by score in pages of 32"),
            std::string::npos);
  other = kRecordRule;
  other.recent_tokens = 17;
  target.rule = rule_of(other);
  EXPECT_NE(refusal(lists, target).find("17 recent ones;"), std::string::npos);
  other = kRecordRule;
  other.threshold_tokens = 431;
  target.rule = rule_of(other);
  EXPECT_NE(refusal(lists, target).find("position 430 is before"), std::string::npos);
  target.rule = {};
  EXPECT_NE(refusal(lists, target).find("take quest"), std::string::npos);
  EXPECT_EQ(refusal(lists, target_of(399)),
            "the lists were recorded in 412 tokens and cannot be replayed in 399; give a longer "
            "context");
}

}  // namespace
}  // namespace sluice::lab
