// The built-in tasks, with a tokenizer whose counts are easy to check by hand.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/count_of.h"
#include "core/error.h"
#include "eval/recipe.h"
#include "eval/ruler_tasks.h"

namespace sluice::eval {

using namespace cli;  // helpers of tests

namespace {

// One token per mark and digit and per three letters of a word, and three more for a chat template.
// Spaces belong to the next token, as in byte-level vocabularies.
std::vector<int32_t> encode_triples(std::string_view message) {
  std::vector<int32_t> ids = {1, 2};
  size_t letters = 0;
  for (const char c : message) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter && letters++ % 3 == 0) ids.push_back(10);
    if (letter) continue;
    letters = 0;
    if (c != ' ' && c != '\n') ids.push_back(11);
  }
  ids.push_back(3);
  return ids;
}

std::string filler_text() {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += i == 0 ? "Line" : " Line";
    for (int word = 0; word < (i * 7) % 12; ++word) text += " of words";
    text += i % 3 == 0 ? " ends." : ".";
  }
  return text;
}

// A task with the haystack that it needs.
struct Bench {
  explicit Bench(std::string_view kind, PromptEncoder encode = encode_triples)
      : task(make_ruler_task(kind)),
        haystack(filler_text(), "text", encode),
        recipe(*task, task->has_haystack() ? &haystack : nullptr, encode) {}

  std::unique_ptr<NeedleTask> task;
  Haystack haystack;
  NeedleRecipe recipe;
};

// Words of the text between spaces and marks, with their numbers of occurrences.
std::map<std::string, size_t> count_words(std::string_view text) {
  std::map<std::string, size_t> counts;
  std::string word;
  for (const char c : std::string(text) + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else if (!word.empty()) {
      ++counts[std::exchange(word, "")];
    }
  }
  return counts;
}

// The message without instruction and question.
std::string text_of(const NeedleItem& item) {
  const size_t begin = item.user_message.find("\n\n") + 2;
  return item.user_message.substr(begin, item.user_message.rfind("\n\n") - begin);
}

class RulerTask : public ::testing::TestWithParam<std::string_view> {};

TEST_P(RulerTask, PromptsHaveExactlyTheLengthAskedFor) {
  const Bench bench(GetParam());
  for (const int64_t length : {400, 512, 1000, 1001, 4096, 20000}) {
    for (int32_t i = 0; i < 5; ++i) {
      const NeedleItem item = bench.recipe.make(7, length, 25 * i, i);
      EXPECT_EQ(static_cast<int64_t>(item.prompt_ids.size()), length);
      EXPECT_EQ(item.prompt_ids, encode_triples(item.user_message));
      EXPECT_TRUE(item.counts_share);
      EXPECT_EQ(score(item, item.expected), 1);
    }
  }
}

TEST_P(RulerTask, IsNeverLongerEvenIfTokensDoNotAddUp) {
  const Bench bench(GetParam(), [](std::string_view message) {
    return std::vector<int32_t>(message.size() / 4 + 5);
  });
  for (const int64_t length : {600, 1001, 4096}) {
    const NeedleItem item = bench.recipe.make(1, length, 50, 0);
    EXPECT_LE(static_cast<int64_t>(item.prompt_ids.size()), length);
    EXPECT_GE(static_cast<int64_t>(item.prompt_ids.size()), length - 5);
  }
}

TEST_P(RulerTask, AnItemDependsOnItsOwnNumbersAlone) {
  const Bench bench(GetParam()), again(GetParam());
  const NeedleItem first = bench.recipe.make(7, 1024, 50, 0);
  std::set<std::string> messages = {first.user_message};
  for (const auto& [seed, length, depth, index] :
       std::vector<std::tuple<uint64_t, int64_t, int32_t, int32_t>>{
           {8, 1024, 50, 0}, {7, 1025, 50, 0}, {7, 1024, 51, 0}, {7, 1024, 50, 1}}) {
    messages.insert(bench.recipe.make(seed, length, depth, index).user_message);
  }
  EXPECT_EQ(messages.size(), 5u);
  EXPECT_EQ(again.recipe.make(7, 1024, 50, 0).user_message, first.user_message);
}

TEST_P(RulerTask, NamesALengthWithoutRoom) {
  const Bench bench(GetParam());
  try {
    bench.recipe.make(1, 90, 50, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("have no room for"), std::string::npos)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RulerTask, ::testing::ValuesIn(kRulerKinds),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(MultiKey, HasOneFactThatIsAskedForAndThreeOthers) {
  const Bench bench("multikey");
  for (const int32_t depth : {0, 50, 100}) {
    const NeedleItem item = bench.recipe.make(3, 2048, depth, 0);
    ASSERT_EQ(item.values.size(), 1u);
    EXPECT_EQ(item.values[0].size(), 7u);
    const std::string fact =
        "special magic numbers for " + item.key + " is: " + item.values[0] + ".";
    EXPECT_EQ(count_of(item.user_message, fact), 1u);
    EXPECT_EQ(count_of(item.user_message, item.values[0]), 1u);
    EXPECT_EQ(count_of(item.user_message, "special magic numbers for "), kNumRulerKeys);
    const auto place =
        static_cast<double>(text_of(item).find("One of the special magic numbers for " + item.key));
    EXPECT_NEAR(place / static_cast<double>(text_of(item).size()), depth / 100.0, 0.06);
  }
}

TEST(MultiValue, HasAllValuesOfOneKeyInOrder) {
  const Bench bench("multivalue");
  const NeedleItem item = bench.recipe.make(3, 2048, 0, 0);
  ASSERT_EQ(item.values.size(), kNumRulerValues);
  size_t before = 0;
  for (const std::string& value : item.values) {
    const std::string fact = "special magic numbers for " + item.key + " is: " + value + ".";
    const size_t at = item.user_message.find(fact);
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(at, before);
    EXPECT_EQ(count_of(item.user_message, value), 1u);
    before = at;
  }
  EXPECT_EQ(score(item, item.values[2] + " and " + item.values[0]), 0.5);
}

// Follows every chain from its number: a variable is assigned after the one it refers to.
TEST(VariableTracking, ChainsAreInOrder) {
  const Bench bench("vt");
  for (const int32_t depth : {0, 30, 100}) {
    const NeedleItem item = bench.recipe.make(5, 2048, depth, 0);
    std::map<std::string, std::vector<std::string>> chains;  // by number
    std::map<std::string, std::string> number_of;            // by variable
    const std::string text = text_of(item);
    for (size_t at = text.find("VAR "); at != std::string::npos; at = text.find("VAR ", at + 1)) {
      const std::string variable = text.substr(at + 4, 5);
      if (text.substr(at + 9, 3) != " = ") continue;  // the right side of an assignment
      const size_t begin = at + 12;
      std::string value = text.substr(begin, text.find('.', begin) - begin);
      if (value.starts_with("VAR ")) {
        const auto source = number_of.find(value.substr(4));
        ASSERT_NE(source, number_of.end()) << value << " is not assigned yet";
        value = source->second;
      }
      EXPECT_TRUE(number_of.emplace(variable, value).second) << variable << " is assigned twice";
      chains[value].push_back(variable);
    }
    EXPECT_EQ(chains.size(), kNumOtherChains + 1);
    for (const auto& [number, variables] : chains) EXPECT_EQ(variables.size(), kNumHops + 1);
    EXPECT_EQ(chains[item.key], item.values);
    EXPECT_NE(item.user_message.find("assigned the value " + item.key + " in"), std::string::npos);
    EXPECT_EQ(score(item, item.values[0] + ", " + item.values[4]), 0.4);
  }
}

TEST(CommonWords, OccurMoreOftenThanAllOthers) {
  const Bench bench("cwe");
  for (const auto& [length, common, uncommon] : std::vector<std::tuple<int64_t, size_t, size_t>>{
           {20000, 30, 3}, {4096, 30, 3}, {2800, 20, 2}, {2048, 10, 1}, {420, 3, 1}}) {
    const NeedleItem item = bench.recipe.make(11, length, 0, 0);
    ASSERT_EQ(item.values.size(), kNumCommonWords);
    const std::set<std::string> expected(item.values.begin(), item.values.end());
    EXPECT_EQ(expected.size(), kNumCommonWords);
    size_t num_uncommon = 0, num_fewer = 0;
    for (const auto& [word, count] : count_words(text_of(item))) {
      if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
        EXPECT_EQ(count, 1u);
      } else if (expected.contains(word)) {
        EXPECT_EQ(count, common) << word << " of " << length;
      } else {
        EXPECT_LE(count, uncommon) << word << " of " << length;
        ++num_uncommon;
        num_fewer += count < uncommon ? 1 : 0;
      }
    }
    EXPECT_GE(num_uncommon, kNumCommonWords);
    EXPECT_LE(num_fewer, 8u) << "words that fill the length";
    EXPECT_TRUE(text_of(item).starts_with("1. "));
  }
}

TEST(FrequentWords, FollowAZetaDistribution) {
  const Bench bench("fwe");
  for (const int64_t length : {400, 4096, 20000}) {
    const NeedleItem item = bench.recipe.make(11, length, 0, 0);
    ASSERT_EQ(item.values.size(), kNumFrequentWords);
    std::map<std::string, size_t> counts = count_words(text_of(item));
    std::vector<size_t> ranked;
    for (const auto& [word, count] : counts) ranked.push_back(count);
    std::sort(ranked.rbegin(), ranked.rend());
    for (size_t i = 0; i < kNumFrequentWords; ++i) {
      EXPECT_EQ(counts[item.values[i]], ranked[i]);
      // The first value has rank 2, since rank 1 is noise.
      const double share = 4.0 / static_cast<double>((i + 2) * (i + 2));
      EXPECT_NEAR(static_cast<double>(ranked[i]), share * static_cast<double>(ranked[0]), 1.01);
    }
    EXPECT_GT(ranked[kNumFrequentWords - 1], ranked[kNumFrequentWords]);
    EXPECT_GT(count_of(text_of(item), "..."), 2 * ranked[0]);
  }
}

}  // namespace
}  // namespace sluice::eval
