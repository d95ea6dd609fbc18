// The incremental detokenizer on characters that are split over several ids: incomplete or repeated
// characters would show.
#include "tokenizer/detokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "tokenizer/tiny_tokenizer.h"

namespace sluice {
namespace {

// Ids of the tiny tokenizer are bytes, so any byte sequence can be pushed.
class DetokenizerTest : public ::testing::Test {
 protected:
  static nlohmann::json document() {
    nlohmann::json result = testing::tiny_tokenizer();
    result["added_tokens"] = {testing::added_token(256, "<s>", true)};
    return result;
  }
  std::vector<std::string> push_all(std::string_view bytes) {
    std::vector<std::string> parts;
    for (const char c : bytes) parts.push_back(detokenizer_.push(static_cast<unsigned char>(c)));
    parts.push_back(detokenizer_.finish());
    return parts;
  }

  const Tokenizer tokenizer_ = Tokenizer::parse(document().dump(), "tiny");
  Detokenizer detokenizer_{tokenizer_};
};

using Parts = std::vector<std::string>;

TEST_F(DetokenizerTest, HoldsBackHalfCharacters) {
  EXPECT_EQ(push_all("a\xC3\xA9"), (Parts{"a", "", "é", ""}));
  EXPECT_EQ(push_all("\xF0\x9F\x98\x80!"), (Parts{"", "", "", "\U0001F600", "!", ""}));
}

TEST_F(DetokenizerTest, ReplacesWhatCannotBecomeACharacter) {
  EXPECT_EQ(push_all("\xFF"), (Parts{"\uFFFD", ""}));
  EXPECT_EQ(push_all("\xE2\x82z"), (Parts{"", "", "\uFFFDz", ""}));
  EXPECT_EQ(push_all("\xE2\xE2\x82\xAC"), (Parts{"", "\uFFFD", "", "€", ""}));
  EXPECT_EQ(push_all("\xED\xA0"), (Parts{"", "\uFFFD\uFFFD", ""}));
}

TEST_F(DetokenizerTest, EndsAnUnfinishedCharacter) {
  EXPECT_EQ(push_all("x\xF0\x9F\x98"), (Parts{"x", "", "", "", "\uFFFD"}));
  EXPECT_EQ(push_all("ok"), (Parts{"o", "k", ""}));  // nothing is left over
}

TEST_F(DetokenizerTest, SkipsSpecialTokensOnlyWhenAsked) {
  Detokenizer showing(tokenizer_, false);
  EXPECT_EQ(detokenizer_.push(256), "");
  EXPECT_EQ(showing.push(256), "<s>");
  EXPECT_EQ(detokenizer_.push(1000000), "");
}

TEST_F(DetokenizerTest, EqualsDecodingAtOnce) {
  std::mt19937 random(7);
  const std::string alphabet = "az\x80\xA9\xC3\xE2\x82\xAC\xED\xA0\xF0\x9F\x98\xF4\x90\xFF";
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids;
    std::string streamed;
    for (size_t n = random() % 12; n > 0; --n) {
      ids.push_back(static_cast<unsigned char>(alphabet[random() % alphabet.size()]));
      streamed += detokenizer_.push(ids.back());
    }
    EXPECT_EQ(streamed + detokenizer_.finish(), tokenizer_.decode(ids, true));
  }
}

}  // namespace
}  // namespace sluice
