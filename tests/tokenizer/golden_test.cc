// Every tokenizer family against ids and texts from the `tokenizers` package.
#include "tokenizer/golden.h"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice {
namespace {

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string family_ = GetParam();
  const Tokenizer tokenizer_ = Tokenizer::load(testing::golden_dir() / family_);
  const nlohmann::json expected_ = testing::golden_json(family_ + "/expected.json");
};

TEST_P(GoldenTokenizer, GivesTheSameIds) {
  const std::vector<std::string> texts = testing::golden_strings();
  const nlohmann::json& parsed = expected_.at("ids");
  const nlohmann::json& literal = expected_.at("ids_without_special");
  ASSERT_GE(texts.size(), 2000u);
  ASSERT_EQ(texts.size(), parsed.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(nlohmann::json(texts[i]).dump(-1, ' ', true).substr(0, 400));
    const std::string with_special = parsed[i].get<std::string>();
    EXPECT_EQ(tokenizer_.encode(texts[i], {.parse_special = true}),
              testing::golden_ids(with_special));
    EXPECT_EQ(tokenizer_.encode(texts[i]),
              testing::golden_ids(literal.value(std::to_string(i), with_special)));
  }
}

TEST_P(GoldenTokenizer, GivesTheSameTexts) {
  for (const auto& entry : expected_.at("decodings")) {
    const auto ids = entry.at(0).get<std::vector<int32_t>>();
    for (const bool skip_special : {true, false}) {
      const std::string text = entry.at(skip_special ? 1 : 2).get<std::string>();
      EXPECT_EQ(tokenizer_.decode(ids, skip_special), text) << entry.at(0);
      Detokenizer detokenizer(tokenizer_, skip_special);
      std::string streamed;
      for (const int32_t id : ids) streamed += detokenizer.push(id);
      EXPECT_EQ(streamed + detokenizer.finish(), text) << entry.at(0);
    }
  }
}

class GgufTokenizer : public GoldenTokenizer {};

// The same vocabulary in a GGUF file gives the same ids, and the same BOS.
TEST_P(GgufTokenizer, GivesTheSameIds) {
  const Tokenizer gguf = Tokenizer::load(testing::source_dir() / "tests/golden/gguf" /
                                         ("tokenizer-" + family_ + ".gguf"));
  EXPECT_TRUE(gguf.config().chat_template.starts_with("{{ bos_token }}"));
  EXPECT_TRUE(gguf.bos_id());
  for (const std::string& text : testing::golden_strings()) {
    for (const bool parse_special : {true, false}) {
      const EncodeOptions options{.add_special_tokens = true, .parse_special = parse_special};
      const std::vector<int32_t> ids = tokenizer_.encode(text, options);
      ASSERT_EQ(gguf.encode(text, options), ids) << text.substr(0, 400);
      ASSERT_EQ(gguf.decode(ids, true), tokenizer_.decode(ids, true));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, GgufTokenizer,
                         ::testing::Values("gpt2", "llama3", "qwen", "qwen35", "smollm2"));

// Vocabularies that lack some bytes, like that of SmolLM2.
TEST(GoldenMissingBytes, GivesTheSameIds) {
  const nlohmann::json golden = testing::golden_json("missing_bytes.json");
  ASSERT_GE(golden.at("vocabularies").size(), 6u);
  for (const auto& one : golden.at("vocabularies")) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    nlohmann::json document =
        testing::golden_json(one.at("family").get<std::string>() + "/tokenizer.json");
    document["model"].update(one.at("model"));
    for (const auto& token : one.at("erased")) {
      EXPECT_EQ(document["model"]["vocab"].erase(token.get<std::string>()), 1u);
    }
    auto& merges = document["model"]["merges"];
    for (auto it = one.at("erased_merges").rbegin(); it != one.at("erased_merges").rend(); ++it) {
      merges.erase(it->get<size_t>());
    }
    const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "tokenizer.json");
    ASSERT_GE(one.at("cases").size(), 40u);
    for (const auto& [text, ids] : one.at("cases").get<std::vector<std::array<std::string, 2>>>()) {
      EXPECT_EQ(tokenizer.encode(text), testing::golden_ids(ids))
          << nlohmann::json(text).dump(-1, ' ', true).substr(0, 400);
    }
  }
}

TEST_P(GoldenTokenizer, HasTheSameSize) {
  EXPECT_EQ(tokenizer_.vocab_size(), expected_.at("vocab_size").get<int32_t>());
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizer,
                         ::testing::Values("gpt2", "qwen", "qwen35", "llama3", "smollm2", "odd"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace sluice
