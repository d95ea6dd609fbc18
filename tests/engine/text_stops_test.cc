// Incremental search for stop strings against a search of the whole text.
#include "engine/text_stops.h"

#include <random>

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(TextStops, FindsTheEarliest) {
  const std::string text = "one two three";
  EXPECT_EQ(find_stop(text, 0, {"three", "two"})->position, 4u);
  EXPECT_EQ(find_stop(text, 0, {"three", "two"})->stop, "two");
  EXPECT_FALSE(find_stop(text, 0, {"four"}));
  EXPECT_FALSE(find_stop(text, 0, {}));
}

TEST(TextStops, HidesWhatMayBecomeAStop) {
  EXPECT_EQ(visible_size("hello <|e", {"<|end|>"}), 6u);
  EXPECT_EQ(visible_size("hello", {"<|end|>"}), 5u);
  EXPECT_EQ(visible_size("aab", {"abab"}), 1u);
  EXPECT_EQ(visible_size("", {"x"}), 0u);
}

// A random text that grows piece by piece: a stop is found exactly when it first appears, and
// visible text is never withdrawn.
TEST(TextStops, GrowingEqualsSearchingFromTheBeginning) {
  std::mt19937 random(1);
  const std::vector<std::string> stops{"aba", "bbab", "cc"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    size_t visible = 0;
    bool stopped = false;
    while (text.size() < 40 && !stopped) {
      const size_t new_begin = text.size();
      for (size_t n = random() % 4; n > 0; --n) text += static_cast<char>('a' + random() % 3);
      size_t expected = std::string::npos;
      for (const std::string& stop : stops) expected = std::min(expected, text.find(stop));
      const auto found = find_stop(text, new_begin, stops);
      ASSERT_EQ(found.has_value(), expected != std::string::npos) << text;
      if (found) {
        ASSERT_EQ(found->position, expected) << text;
        ASSERT_LE(visible, expected) << text;
        stopped = true;
      } else {
        ASSERT_GE(visible_size(text, stops), visible) << text;
        visible = visible_size(text, stops);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
