// The needle recipe, with tokenizers whose counts are easy to check by hand.
#include <cctype>
#include <set>

#include <gtest/gtest.h>

#include "cli/count_of.h"
#include "eval/recipe.h"
#include "io/temp_dir.h"
#include "sluice/error.h"
#include "support/source_dir.h"

namespace sluice::eval {

using namespace cli;  // helpers of tests

namespace {

// One token per word, punctuation mark and digit, and three more for a chat template. Words split
// only at spaces and marks, as with the patterns of real tokenizers.
std::vector<int32_t> encode_words(std::string_view message) {
  std::vector<int32_t> ids = {1, 2};
  bool in_word = false;
  for (const char c : message) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter && !in_word) ids.push_back(10);
    if (!letter && c != ' ' && c != '\n') ids.push_back(11);
    in_word = letter;
  }
  ids.push_back(3);
  return ids;
}

// Four characters per token: the counts of pieces do not add up to the count of the whole.
std::vector<int32_t> encode_quads(std::string_view message) {
  return std::vector<int32_t>(message.size() / 4 + 5);
}

NeedleKind number_kind() { return default_needle_templates().kind("number"); }

// Sentences of one to twelve words, no two alike.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    std::string sentence = "Line";
    for (int word = 0; word < (i * 7) % 12; ++word) {
      sentence += " w" + std::string(1, static_cast<char>('a' + (i + word) % 26));
    }
    for (int rest = i; rest > 0; rest /= 26) sentence += static_cast<char>('a' + rest % 26);
    text += (i == 0 ? "" : " ") + sentence + ".";
  }
  return text;
}

TemplateTask number_task() { return {number_kind(), "{haystack}\n\n{question}"}; }

TEST(NeedleRecipe, PromptsHaveExactlyTheLengthAskedFor) {
  const Haystack haystack(long_text(), "text", encode_words);
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, encode_words);
  for (const int64_t length : {64, 100, 101, 257, 1024, 4096}) {
    for (const int32_t depth : {0, 33, 50, 100}) {
      for (int32_t i = 0; i < 3; ++i) {
        const NeedleItem item = recipe.make(7, length, depth, i);
        EXPECT_EQ(static_cast<int64_t>(item.prompt_ids.size()), length);
        EXPECT_EQ(item.prompt_ids, encode_words(item.user_message));
        EXPECT_EQ(count_of(item.user_message, "The secret number of the"), 1u);
        EXPECT_EQ(count_of(item.user_message, item.values[0]), 1u);
        EXPECT_TRUE(
            item.user_message.ends_with("What is the secret number of the " + item.key + "?"));
      }
    }
  }
}

TEST(NeedleRecipe, IsNeverLongerEvenIfTokensDoNotAddUp) {
  const Haystack haystack(long_text(), "text", encode_quads);
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, encode_quads);
  for (const int64_t length : {64, 333, 1000, 2048}) {
    const NeedleItem item = recipe.make(1, length, 50, 0);
    EXPECT_LE(static_cast<int64_t>(item.prompt_ids.size()), length);
    EXPECT_GE(static_cast<int64_t>(item.prompt_ids.size()), length - 3);
  }
}

TEST(NeedleRecipe, AnItemDependsOnItsOwnNumbersAlone) {
  const Haystack haystack(long_text(), "text", encode_words);
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, encode_words);
  const NeedleItem first = recipe.make(7, 512, 50, 0);
  EXPECT_EQ(recipe.make(7, 512, 50, 0).user_message, first.user_message);
  std::set<std::string> values = {first.values[0]};
  for (const auto& [seed, length, depth, index] :
       std::vector<std::tuple<uint64_t, int64_t, int32_t, int32_t>>{
           {8, 512, 50, 0}, {7, 513, 50, 0}, {7, 512, 51, 0}, {7, 512, 50, 1}}) {
    values.insert(recipe.make(seed, length, depth, index).values[0]);
  }
  EXPECT_EQ(values.size(), 5u);  // all different
}

TEST(NeedleRecipe, TheNeedleIsAtItsDepth) {
  const Haystack haystack(long_text(), "text", encode_words);
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, encode_words);
  for (const int32_t depth : {0, 10, 50, 75, 100}) {
    const NeedleItem item = recipe.make(3, 2048, depth, 0);
    const size_t at = item.user_message.find("The secret number of the");
    const std::string needle =
        "The secret number of the " + item.key + " is " + item.values[0] + ".";
    ASSERT_EQ(item.user_message.substr(at, needle.size()), needle);
    const auto before =
        static_cast<double>(encode_words(item.user_message.substr(0, at)).size() - 3);
    // The nearest end of a sentence is within half of the longest sentence (14 tokens).
    EXPECT_NEAR(before, depth / 100.0 * 2016, 16) << depth;
    EXPECT_EQ(at == 0, depth == 0);
    EXPECT_EQ(item.user_message.find("Line", at) == std::string::npos, depth == 100);
    // The needle is after the end of a sentence.
    if (at > 0) {
      EXPECT_EQ(item.user_message.substr(at - 2, 2), ". ");
    }
  }
}

TEST(NeedleRecipe, SeveralValuesOfOneKeyAreAllAskedFor) {
  NeedleKind kind = number_kind();
  kind.separator = ", ";
  const Haystack haystack(long_text(), "text", encode_words);
  const TemplateTask task(kind, "{haystack}\n\n{question}");
  const NeedleItem item = NeedleRecipe(task, &haystack, encode_words).make(5, 1024, 0, 0);
  ASSERT_EQ(item.values.size(), static_cast<size_t>(NeedleKind::kNumSeveralValues));
  for (const std::string& value : item.values) EXPECT_EQ(count_of(item.user_message, value), 1u);
  EXPECT_NE(item.expected.find(item.values[0] + ", " + item.values[1]), std::string::npos);
  EXPECT_FALSE(is_correct(item, item.values[0] + ", " + item.values[1]));
  EXPECT_TRUE(is_correct(item, item.expected));
}

TEST(NeedleRecipe, ARepeatedHaystackStartsOverAtItsEnd) {
  const Haystack haystack(default_needle_templates().repeated_haystack, "repeated", encode_words);
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, encode_words);
  const NeedleItem item = recipe.make(1, 1000, 50, 0);
  EXPECT_EQ(item.prompt_ids.size(), 1000u);
  EXPECT_GT(count_of(item.user_message, "The grass is green."), 20u);
}

TEST(NeedleRecipe, NamesWhatIsTooShort) {
  const Haystack haystack(long_text(), "text", encode_words);
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, encode_words);
  EXPECT_THROW(recipe.make(1, 20, 50, 0), Error);
  try {
    const Haystack bad("no sentence ends here", "my.txt", encode_words);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("my.txt"), std::string::npos);
  }
}

// A binary file may be two sentences, one of them very long: the text that is encoded to cut it
// must be a small multiple of the prompt, not quadratic in the file's size.
TEST(NeedleRecipe, CutsALongSentenceInLinearTime) {
  std::string text = "One short line. It";
  for (int i = 0; i < 200000; ++i)
    text += " and w" + std::string(1, static_cast<char>('a' + i % 26));
  size_t num_encoded = 0;
  const PromptEncoder counting = [&](std::string_view message) {
    num_encoded += message.size();
    return encode_words(message);
  };
  const Haystack haystack(text, "binary", counting);
  EXPECT_LT(num_encoded, 2 * text.size());
  const TemplateTask task = number_task();
  const NeedleRecipe recipe(task, &haystack, counting);
  for (const int64_t length : {100, 4096}) {
    num_encoded = 0;
    const NeedleItem item = recipe.make(7, length, 50, 0);
    EXPECT_EQ(static_cast<int64_t>(item.prompt_ids.size()), length);
    // About 30 pieces per try, none longer than two prompts at 4 bytes per token.
    EXPECT_LT(num_encoded, static_cast<size_t>(length) * 8 * 60 * 4);
  }
}

TEST(NeedleScore, WantsTheValueAsAWord) {
  NeedleItem item;
  item.values = {"1234567"};
  EXPECT_TRUE(is_correct(item, "1234567"));
  EXPECT_TRUE(is_correct(item, "The secret number is 1234567."));
  EXPECT_TRUE(is_correct(item, "912345678 or 1234567"));
  for (const char* wrong : {"", "123456", "12345678", "91234567", "1234 567", "a1234567"}) {
    EXPECT_FALSE(is_correct(item, wrong)) << wrong;
  }
}

TEST(NeedleTemplates, FillsEveryPlaceholderOnce) {
  EXPECT_EQ(fill_template("{key} and {key}", "key", "{key}"), "{key} and {key}");
  EXPECT_EQ(fill_template("{key}: {value}", "value", "7"), "{key}: 7");
}

// All of the values or nothing, as long as the item does not count shares.
TEST(NeedleScore, IsTheShareOfValuesOnlyWhereSharesCount) {
  NeedleItem item;
  item.values = {"KQXRA", "LMNOP", "ZZTOP", "ABCDE"};
  EXPECT_EQ(score(item, "KQXRA, LMNOP"), 0);
  EXPECT_EQ(score(item, "ABCDE KQXRA LMNOP ZZTOP"), 1);
  item.counts_share = true;
  EXPECT_EQ(score(item, "KQXRA, LMNOP"), 0.5);
  EXPECT_EQ(score(item, "kqxra and Lmnop, but not ABCDEF"), 0.5) << "case counts nothing";
  EXPECT_EQ(score(item, ""), 0);
  EXPECT_FALSE(is_correct(item, "KQXRA, LMNOP, ZZTOP"));
  EXPECT_TRUE(is_correct(item, "kqxra lmnop zztop abcde"));
}

// Every answer contains an empty value.
TEST(NeedleTemplates, RefusesEmptyTexts) {
  const TempDir directory;
  const std::string text = R"({"format": 1, "prompt": "{haystack} {question}",
      "repeated_haystack": "A b. C d.", "kinds": [{"name": "n", "needle": "{key} {value}",
      "question": "{key}?", "answer": "{value}", "keys": ["k"], "values": ["a", ""]}]})";
  const auto path = directory.write("templates.json", text);
  try {
    read_needle_templates(directory.path() / "templates.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"values\" holds an empty text"), std::string::npos)
        << error.what();
  }
}

TEST(NeedleTemplates, RefusesTheNameOfABuiltInKind) {
  const std::string text = R"({"format": 1, "prompt": "{haystack} {question}",
      "repeated_haystack": "A b. C d.", "kinds": [{"name": "vt", "needle": "{key} {value}",
      "question": "{key}?", "answer": "{value}", "keys": ["k"], "values": ["a"]}]})";
  EXPECT_THROW(parse_needle_templates(text, "templates.json"), Error);
}

TEST(NeedleTemplates, ReadsTheBundledModelsFile) {
  const NeedleTemplates templates = read_needle_templates(
      (testing::source_dir() / "models/needle/needle_templates.json").string());
  EXPECT_EQ(templates.kind("number").value_digits, 7);
  EXPECT_FALSE(templates.kind("city").values.empty());
  EXPECT_EQ(templates.kind("values").separator, ", ");
  EXPECT_THROW(templates.kind("colour"), Error);
}

}  // namespace
}  // namespace sluice::eval
