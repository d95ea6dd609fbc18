// Vocabularies of GGUF files that are refused, and damaged ones.
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"
#include "tokenizer/golden.h"
#include "tokenizer/tokenizer.h"

namespace sluice {
namespace {

std::string good_gguf() {
  return slurp(testing::source_dir() / "tests/golden/gguf/tokenizer-smollm2.gguf");
}

// The error of that file with one text in place of another of the same length.
std::string error_of_change(std::string_view old_text, std::string_view new_text, ErrorCode code) {
  const TempDir dir;
  std::string bytes = good_gguf();
  const size_t at = bytes.find(old_text);
  EXPECT_NE(at, bytes.npos);
  bytes.replace(at, old_text.size(), new_text);
  const auto path = dir.write("model.gguf", bytes);
  const std::string error = expect_error(code, [&] { Tokenizer::load(path); });
  EXPECT_TRUE(contains(error, path.string()));
  return error;
}

TEST(GgufTokenizerRefusals, NameKeyAndValue) {
  // Values follow their length.
  EXPECT_TRUE(contains(error_of_change({"\4\0\0\0\0\0\0\0gpt2", 12}, {"\4\0\0\0\0\0\0\0bert", 12},
                                       ErrorCode::kUnsupported),
                       "tokenizer.ggml.model is \"bert\""));
  EXPECT_TRUE(contains(error_of_change({"\6\0\0\0\0\0\0\0smollm", 14},
                                       {"\6\0\0\0\0\0\0\0viking", 14}, ErrorCode::kUnsupported),
                       "tokenizer.ggml.pre is \"viking\""));
  EXPECT_TRUE(
      contains(error_of_change("tokenizer.ggml.merges", "tokenizer.ggml.nerges", ErrorCode::kModel),
               "the metadata has no tokenizer.ggml.merges"));
}

// Of Smaug and SmolLM3, which cut text as Llama 3 does. Words that are tokens are merged all the
// same, and no BOS is added.
TEST(GgufTokenizerPre, SmaugCutsAsLlama3) {
  std::string bytes = slurp(testing::source_dir() / "tests/golden/gguf/tokenizer-llama3.gguf");
  const std::string_view name = "llama-bpe";
  bytes.replace(bytes.find(name), name.size(), "smaug-bpe");
  const TempDir dir;
  const Tokenizer smaug = Tokenizer::load(dir.write("smaug.gguf", bytes));
  nlohmann::json document = testing::golden_json("llama3/tokenizer.json");
  document["model"]["ignore_merges"] = false;
  const Tokenizer llama3 = Tokenizer::parse(document.dump(), "tokenizer.json");
  for (const std::string& text : testing::golden_strings()) {
    const std::vector<int32_t> ids = smaug.encode(text);
    ASSERT_EQ(ids, llama3.encode(text, {.add_special_tokens = false})) << text.substr(0, 400);
  }
  EXPECT_EQ(llama3.encode("1234").size(), smaug.encode("1234").size() + 1);
}

// A damaged file loads or is an error; nothing else, and soon.
TEST(GgufTokenizerFuzz, DamagedFilesAreErrors) {
  const std::string good = good_gguf();
  const TempDir dir;
  std::mt19937_64 random(11);
  for (int i = 0; i < 60; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto path = dir.write("model.gguf", bytes);
    const auto start = std::chrono::steady_clock::now();
    try {
      Tokenizer::load(path).encode("Hello, world 123");
    } catch (const Error&) {
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    ASSERT_LT(taken.count(), 1.0) << i;
  }
}

}  // namespace
}  // namespace sluice
