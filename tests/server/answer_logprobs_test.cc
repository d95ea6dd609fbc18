// Log-probabilities in their three shapes, by hand.
#include "server/api/answer/answer_logprobs.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/answer_rig.h"

namespace sluice {
namespace {

using testing::answer_tokenizer;
using testing::entry;
using testing::kBos;
using testing::kEnd;
using testing::kHi;
using OrderedJson = nlohmann::ordered_json;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The text of a value reads back as the same float, and seldom has more digits than it needs (the
// writer of doubles finds the shortest in nearly all cases).
TEST(Logprobs, PrintTheDigitsOfFloats) {
  EXPECT_EQ(OrderedJson(api::json_logprob(-0.1f)).dump(), "-0.1");
  EXPECT_EQ(OrderedJson(api::json_logprob(-1e-7f)).dump(), "-1e-07");
  EXPECT_EQ(OrderedJson(api::json_logprob(0.0f)).dump(), "0.0");
  EXPECT_EQ(OrderedJson(api::json_logprob(-kInfinity)).dump(), "-9999.0");
  std::mt19937 random(20261123);
  int num_long = 0;
  for (int round = 0; round < 100000; ++round) {
    const float value = -std::exp(static_cast<float>(random() % 100000) / 10000.0f - 5.0f);
    const std::string text = OrderedJson(api::json_logprob(value)).dump();
    EXPECT_EQ(std::strtof(text.c_str(), nullptr), value) << text;
    num_long += text.size() > 13;
  }
  EXPECT_LT(num_long, 1000);
}

TEST(Logprobs, Chat) {
  const std::string want = R"({"token":"Hi","logprob":-0.5,"bytes":[72,105],"top_logprobs":[)"
                           R"({"token":"Hi","logprob":-0.5,"bytes":[72,105]},)"
                           R"({"token":")"
                           "\uFFFD"
                           R"(","logprob":-9999.0,"bytes":[195]}]})";
  const api::LogprobEntry one =
      entry(kHi, -0.5f, {{kHi, -0.5f}, {0xC3, -kInfinity}, {'x', -kInfinity}});
  EXPECT_EQ(api::chat_logprob(answer_tokenizer(), one, 2).dump(), want);
  EXPECT_EQ(api::chat_logprob(answer_tokenizer(), one, 0).dump(),
            R"({"token":"Hi","logprob":-0.5,"bytes":[72,105],"top_logprobs":[]})");
}

TEST(Logprobs, OfPrompts) {
  const std::vector<api::LogprobEntry> entries = {
      {}, entry('a', -2.5f, {{'b', -0.5f}, {'a', -2.5f}}), entry('c', -kInfinity, {{'b', -0.25f}})};
  EXPECT_EQ(api::prompt_logprobs_json(answer_tokenizer(), entries, 2).dump(),
            R"([null,{"97":{"logprob":-2.5,"rank":2,"decoded_token":"a"},)"
            R"("98":{"logprob":-0.5,"rank":1,"decoded_token":"b"}},)"
            R"({"99":{"logprob":-9999.0,"rank":null,"decoded_token":"c"},)"
            R"("98":{"logprob":-0.25,"rank":1,"decoded_token":"b"}}])");
  EXPECT_EQ(api::prompt_logprobs_json(answer_tokenizer(), {{}, entries[1]}, 0).dump(),
            R"([null,{"97":{"logprob":-2.5,"rank":null,"decoded_token":"a"}}])");
}

std::string legacy(const api::AnswerPrompt& prompt, const std::vector<api::LogprobEntry>& before,
                   const std::vector<api::LogprobEntry>& after, int32_t num_top) {
  api::LegacyLogprobs logprobs(answer_tokenizer(), num_top, true);
  OrderedJson lists = api::LegacyLogprobs::empty();
  if (!before.empty()) logprobs.append_prompt(prompt, before, lists);
  logprobs.append_answer(after, lists);
  return lists.dump();
}

// Without echo: offsets in the answer, a character of two tokens, the end token without a text.
TEST(LegacyLogprobs, OfAnswers) {
  EXPECT_EQ(legacy({}, {},
                   {entry(kHi, -0.5f, {{kHi, -0.5f}}), entry(0xC3, -1.0f, {{0xC4, -0.75f}}),
                    entry(0xA9, -2.0f, {{0xC4, -3.0f}}), entry('x', -kInfinity, {{'y', -0.1f}}),
                    entry(kEnd, -0.25f, {{kEnd, -0.25f}})},
                   1),
            R"({"tokens":["Hi","bytes:\\xc3","bytes:\\xa9","x","<end>"],)"
            R"("token_logprobs":[-0.5,-1.0,-2.0,-9999.0,-0.25],"top_logprobs":[{"Hi":-0.5},)"
            R"({"bytes:\\xc3":-1.0,"bytes:\\xc4":-0.75},{"bytes:\\xa9":-2.0,"bytes:\\xc4":-3.0},)"
            R"({"x":-9999.0,"y":-0.1},{"<end>":-0.25}],"text_offset":[0,2,2,3,4]})");
}

// As many names as were asked for: parts of characters, and ids without a token, which models pad
// their vocabulary with.
TEST(LegacyLogprobs, NamesAreDifferent) {
  const std::string text = legacy(
      {}, {}, {entry(0xBC, -0.5f, {{0xBC, -0.5f}, {0xBD, -1.0f}, {900, -2.0f}, {901, -3.0f}})}, 4);
  EXPECT_EQ(OrderedJson::parse(text)["top_logprobs"][0],
            (OrderedJson{
                {"bytes:\\xbc", -0.5}, {"bytes:\\xbd", -1.0}, {"", -2.0}, {"token_id:901", -3.0}}));
}

// The echoed prompt's, too; offsets count the texts.
TEST(LegacyLogprobs, NamesMayBeIds) {
  api::LegacyLogprobs logprobs(answer_tokenizer(), 1, true, api::TokenNames::kIds);
  OrderedJson lists = api::LegacyLogprobs::empty();
  logprobs.append_prompt({.ids = {kHi, 0xC3}}, {{}, entry(0xC3, -0.5f, {{0xC4, -0.25f}})}, lists);
  logprobs.append_answer({entry('z', -1.0f, {{'z', -1.0f}})}, lists);
  EXPECT_EQ(lists["tokens"].dump(), R"(["token_id:256","token_id:195","token_id:122"])");
  EXPECT_EQ(lists["top_logprobs"].dump(),
            R"([null,{"token_id:195":-0.5,"token_id:196":-0.25},{"token_id:122":-1.0}])");
  EXPECT_EQ(lists["text_offset"].dump(), "[0,2,3]");
}

// lm-eval's request: ids, echo, one likeliest token. It reads [ctxlen:-1] of both lists and
// compares the chosen value with the largest of the map.
TEST(LegacyLogprobs, OfEchoedIds) {
  const api::AnswerPrompt prompt{.ids = {kBos, 'a', 0xC3, 0xA9}};
  const std::string text = legacy(prompt,
                                  {{},
                                   entry('a', -0.123456789f, {{'a', -0.123456789f}}),
                                   entry(0xC3, -7.0f, {{'b', -1.0f}}),
                                   entry(0xA9, -0.5f, {{0xA9, -0.5f}})},
                                  {entry('z', -0.25f, {{'z', -0.25f}})}, 1);
  EXPECT_EQ(text, R"({"tokens":["<bos>","a","bytes:\\xc3","bytes:\\xa9","z"],)"
                  R"("token_logprobs":[null,-0.12345679,-7.0,-0.5,-0.25],)"
                  R"("top_logprobs":[null,{"a":-0.12345679},{"bytes:\\xc3":-7.0,"b":-1.0},)"
                  R"({"bytes:\\xa9":-0.5},{"z":-0.25}],"text_offset":[0,5,6,6,7]})");
}

// A BOS that the text lacks has no width; one that is written in it has.
TEST(LegacyLogprobs, OfEchoedTexts) {
  const std::vector<api::LogprobEntry> two = {{}, entry('a', -1.0f)};
  const auto offsets = [&](const char* text, std::vector<int32_t> ids,
                           const std::vector<api::LogprobEntry>& entries) {
    const auto lists =
        OrderedJson::parse(legacy({std::move(ids), text}, entries, {entry('z', -2.0f)}, 0));
    return lists["text_offset"].dump();
  };
  EXPECT_EQ(offsets("a", {kBos, 'a'}, two), "[0,0,1]");
  EXPECT_EQ(offsets("<bos>a", {kBos, 'a'}, two), "[0,5,6]");
  EXPECT_EQ(offsets("ba", {'b', 'a'}, two), "[0,1,2]");
  EXPECT_EQ(offsets("a<end>", {'a', kEnd}, two), "[0,1,6]");
}

}  // namespace
}  // namespace sluice
