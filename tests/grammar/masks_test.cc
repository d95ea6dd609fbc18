// Masks against brute force: a token is allowed exactly if its text is, byte by byte.
//
// Vocabularies have tokens that cross the structure of a document; documents are random walks under
// the masks themselves.
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "support/sample_of.h"

namespace sluice {
namespace {

const char* const kSchemas[] = {
    R"({"type":"object"})",
    R"({"type":"array","items":{"type":"string","maxLength":5}})",
    R"({"type":"object","properties":{"name":{"type":"string","pattern":"^[A-Z][a-z]*$"},
        "size":{"type":"integer","minimum":3,"maximum":1200},
        "tags":{"type":"array","items":{"enum":["a","b\"","é"]}}},
        "required":["name","tags"]})",
    R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"number"},
        "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],
        "additionalProperties":false}},"$ref":"#/$defs/n"})",
    R"({"type":"object","patternProperties":{"^x":{"type":"boolean"}},
        "additionalProperties":{"format":"date","type":"string"},"minProperties":1})",
    R"({"type":"object","properties":{"kind":{"enum":["a","b"]},
        "x":{"type":"number","not":{"const":1}}},
        "required":["kind"],"if":{"properties":{"kind":{"const":"a"}}},"then":{"required":["x"]},
        "unevaluatedProperties":false})",
    R"({"type":"array","contains":{"type":"null"},"items":{"enum":[null,"a","x\n",true,-1.5]},
        "minItems":2,"maxItems":6})",
    R"({"type":"array","items":{"enum":["a","name",0,10,"é"]},"uniqueItems":true})",
    R"({"type":"array","items":{"type":"string","minLength":3,"maxLength":12}})",
};

// Tokens of one to four pieces of JSON, and a part of the vocabulary that has plain letters alone.
std::vector<std::string> mixed_tokens(std::mt19937& random) {
  const std::vector<std::string> pieces = {
      "{", "}", "[", "]", ",", ":",   "\"",   " ",   "\n",   "a", "x",    "name",
      "1", "0", "-", ".", "e", "\\u", "00e9", "\\n", "\\\"", "é", "null", "true"};
  std::vector<std::string> tokens = {
      "\"}]", "\"}]}", "},", "\":", "\", \"", "\xC3", "\xA9\"", "\xF0\x9F"};
  for (int i = 0; i < 400; ++i) {
    std::string token;
    for (unsigned n = 1 + random() % 4; n > 0; --n) token += pieces[random() % pieces.size()];
    tokens.push_back(token);
  }
  for (int i = 0; i < 100; ++i) {
    std::string token = "b";
    for (unsigned n = 1 + random() % 5; n > 0; --n) token += "bcd"[random() % 3];
    tokens.push_back(token);
  }
  return tokens;
}

// Of each schema; 5,400 in all without a sanitizer.
constexpr int kPlaces = 600;

class Masks : public ::testing::TestWithParam<const char*> {};

TEST_P(Masks, EqualBruteForceAtRandomPlaces) {
  std::mt19937 random(7);
  const TokenTable table = byte_tokens(mixed_tokens(random));
  const auto vocabulary = std::make_shared<const Vocabulary>(table);
  const auto grammar = std::make_shared<const Grammar>(
      structure_rules({.kind = StructureKind::kJsonSchema, .text = GetParam()}).rules, vocabulary);
  std::vector<int32_t> words((table.bytes.size() + 31) / 32);
  const auto bit = [&](size_t id) { return (words[id / 32] >> (id % 32) & 1) != 0; };
  int num_places = 0;
  for (size_t document = 0; num_places < kPlaces; ++document) {
    if (!testing::in_sample(document, 8)) {
      num_places += 8;  // about as long as a document is
      continue;
    }
    const auto matcher = grammar->make_matcher();
    const auto bytewise = grammar->make_matcher();
    for (int step = 0; step < 30; ++step, ++num_places) {
      matcher->fill_mask(words);
      std::vector<int32_t> allowed;
      for (size_t id = 0; id < table.bytes.size(); ++id) {
        const std::string& text = table.bytes[id];
        const size_t taken = accept_bytes(*bytewise, text);
        bytewise->rollback(static_cast<int64_t>(taken));
        const bool is_allowed = static_cast<int32_t>(id) == kEndToken
                                    ? bytewise->is_complete()
                                    : !text.empty() && taken == text.size();
        ASSERT_EQ(bit(id), is_allowed) << "token \"" << text << "\" at step " << step;
        if (is_allowed) allowed.push_back(static_cast<int32_t>(id));
      }
      ASSERT_FALSE(allowed.empty());
      const int32_t next = allowed[random() % allowed.size()];
      ASSERT_TRUE(matcher->accept(next));
      if (next == kEndToken) break;
      accept_bytes(*bytewise, table.bytes[static_cast<size_t>(next)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemas, Masks, ::testing::ValuesIn(kSchemas));

TEST(Matcher, RollsBackAlsoOverItsEnd) {
  const auto vocabulary = std::make_shared<const Vocabulary>(byte_tokens());
  const auto grammar = std::make_shared<const Grammar>("root ::= \"ab\" | \"ac\"\n", vocabulary);
  const auto matcher = grammar->make_matcher();
  EXPECT_TRUE(matcher->accept('a'));
  EXPECT_FALSE(matcher->accept('a'));
  EXPECT_FALSE(matcher->accept(kEndToken));
  EXPECT_TRUE(matcher->accept('b'));
  EXPECT_TRUE(matcher->is_complete());
  EXPECT_TRUE(matcher->accept(kEndToken));
  EXPECT_TRUE(matcher->has_ended());
  matcher->rollback(2);
  EXPECT_FALSE(matcher->has_ended());
  EXPECT_TRUE(matcher->accept('c'));
  EXPECT_TRUE(matcher->is_complete());
}

}  // namespace
}  // namespace sluice
