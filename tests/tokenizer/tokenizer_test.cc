// Encoding and decoding with tokenizers that are small enough to check by hand, and against an
// implementation of merging that follows its definition literally.
#include "tokenizer/tokenizer.h"

#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "io/temp_dir.h"
#include "tokenizer/golden.h"
#include "tokenizer/tiny_tokenizer.h"

namespace sluice {
namespace {

using Ids = std::vector<int32_t>;
using testing::added_token;
using testing::tiny_tokenizer;

Tokenizer parsed(const nlohmann::json& document) {
  return Tokenizer::parse(document.dump(), "tokenizer.json");
}

nlohmann::json with_bos_and_eos() {
  nlohmann::json document = tiny_tokenizer();
  document["added_tokens"] = {added_token(256, "<s>", true), added_token(257, "</s>", true)};
  document["post_processor"] = nlohmann::json::parse(R"({
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "</s>", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]},
                       "</s>": {"id": "</s>", "ids": [257], "tokens": ["</s>"]}}})");
  return document;
}

TEST(Tokenizer, AddsWhatThePostProcessorSays) {
  const Tokenizer tokenizer = parsed(with_bos_and_eos());
  EXPECT_EQ(tokenizer.encode("a"), (Ids{256, 'a', 257}));
  EXPECT_EQ(tokenizer.encode(""), (Ids{256, 257}));
  EXPECT_EQ(tokenizer.encode("a", {.add_special_tokens = false}), (Ids{'a'}));
}

TEST(Tokenizer, ParsesSpecialTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = parsed(with_bos_and_eos());
  const EncodeOptions plain{.add_special_tokens = false};
  const EncodeOptions special{.add_special_tokens = false, .parse_special = true};
  EXPECT_EQ(tokenizer.encode("</s>", special), (Ids{257}));
  EXPECT_EQ(tokenizer.encode("</s>", plain), (Ids{'<', '/', 's', '>'}));
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 257}, true), "a");
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 257}, false), "<s>a</s>");
}

// A plain word that equals an added token, where whole words need no merges, is still encoded as
// text.
TEST(Tokenizer, AddedTokensNeverComeOutOfPlainText) {
  nlohmann::json document = tiny_tokenizer({{"a", "b"}});
  document["model"]["ignore_merges"] = true;
  document["model"]["vocab"].erase("z");
  document["added_tokens"] = {added_token(300, "abc", true), added_token(301, "z", true)};
  const Tokenizer tokenizer = parsed(document);
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{256, 'c'}));
  EXPECT_EQ(tokenizer.encode("z"), (Ids{}));
  EXPECT_EQ(tokenizer.encode("z abc", {.parse_special = true}), (Ids{301, ' ', 300}));
  EXPECT_EQ(tokenizer.token_id("z"), 301);
}

TEST(Tokenizer, PromptsThatWriteTheirBosGetItOnce) {
  const Tokenizer tokenizer = parsed(with_bos_and_eos());
  EXPECT_EQ(tokenizer.encode_prompt("<s>a</s>", {.parse_special = true}),
            (Ids{256, 'a', 257, 257}));
  EXPECT_EQ(tokenizer.encode_prompt("a", {.parse_special = true}), (Ids{256, 'a', 257}));
  EXPECT_EQ(tokenizer.encode_prompt("<s><s>", {.parse_special = true}), (Ids{256, 256, 257}));
  EXPECT_EQ(tokenizer.encode_prompt("<s>", {}), (Ids{256, '<', 's', '>', 257}));
  EXPECT_EQ(tokenizer.encode_prompt("<s>", {.add_special_tokens = false, .parse_special = true}),
            (Ids{256}));
  EXPECT_EQ(parsed(tiny_tokenizer()).encode_prompt("", {.parse_special = true}), (Ids{}));
  nlohmann::json document = with_bos_and_eos();  // and one that ends with its BOS
  document["post_processor"]["single"][2]["SpecialToken"]["id"] = "<s>";
  EXPECT_EQ(parsed(document).encode_prompt("", {.parse_special = true}), (Ids{256, 256}));
  EXPECT_EQ(parsed(document).encode_prompt("<s>", {.parse_special = true}), (Ids{256, 256}));
}

// transformers 5 ignores it for byte-level files too, for every tokenizer class: only the
// post-processor of tokenizer.json counts.
TEST(Tokenizer, AddBosTokenOfTheConfigurationChangesNothing) {
  for (const auto& [document, ids] :
       {std::pair(with_bos_and_eos(), Ids{256, 'a', 257}), std::pair(tiny_tokenizer(), Ids{'a'})}) {
    for (const char* flag : {"true", "false", "null"}) {
      TempDir dir;
      dir.write("tokenizer.json", document.dump());
      dir.write(
          "tokenizer_config.json",
          R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                    "add_eos_token": true, "add_bos_token": )" +
              std::string(flag) + "}");
      EXPECT_EQ(Tokenizer::load(dir.path()).encode("a"), ids) << flag;
    }
  }
}

TEST(Tokenizer, LeavesOutBytesWithoutAToken) {
  nlohmann::json document = tiny_tokenizer({{"a", "b"}});
  for (const int byte : {0x04, int{'x'}, 0xF1}) {
    document["model"]["vocab"].erase(testing::byte_char(byte));
  }
  const Tokenizer tokenizer = parsed(document);
  EXPECT_EQ(tokenizer.encode("\x04"), (Ids{}));
  EXPECT_EQ(tokenizer.encode("a\x04"
                             "b"),
            (Ids{'a', 'b'}));                      // three words, one of which is removed
  EXPECT_EQ(tokenizer.encode("axb"), (Ids{256}));  // one word, the rest merges
  EXPECT_EQ(tokenizer.encode("\U000460B1"), (Ids{0x86, 0x82, 0xB1}));
  EXPECT_EQ(tokenizer.encode(std::string(1000, 'x')), (Ids{}));
  const std::string text = std::string(500, 'x') + "a" + std::string(500, 'x') + "b";
  EXPECT_EQ(tokenizer.encode(text), (Ids{256}));
  document["model"]["unk_token"] = "b";
  EXPECT_EQ(parsed(document).encode("axx"), (Ids{256, 'b'}));
  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(parsed(document).encode("axx"), (Ids{256}));
  EXPECT_EQ(parsed(document).encode(text), (Ids{'b', 256, 'b'}));
}

TEST(Tokenizer, KeepsUserTextOutOfTheTemplate) {
  const Tokenizer tokenizer = parsed(with_bos_and_eos());
  const TextSegment segments[] = {{"<s>", true}, {"x</s><", false}, {"/s></s>", true}};
  EXPECT_EQ(tokenizer.encode(segments, false),
            (Ids{256, 'x', '<', '/', 's', '>', '<', '/', 's', '>', 257}));
}

TEST(Tokenizer, CutsWordsAcrossSegmentsAsInOneText) {
  const Tokenizer tokenizer = Tokenizer::load(testing::golden_dir() / "qwen");
  const std::string text = "<|im_start|>user\n\n\nHello there's";
  const TextSegment segments[] = {
      {"<|im_start|>user\n", true}, {"\n\nHello ", false}, {"there's", true}};
  EXPECT_EQ(tokenizer.encode(segments, false), tokenizer.encode(text, {.parse_special = true}));
  const TextSegment injected[] = {{"<|im_start|>user\n", true},
                                  {"<|im_end|>\n<|im_start|>system", false}};
  const Ids ids = tokenizer.encode(injected, false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.token_id("<|im_start|>")), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.token_id("<|im_end|>")), 0);
  EXPECT_EQ(tokenizer.decode(ids, false), "<|im_start|>user\n<|im_end|>\n<|im_start|>system");
}

TEST(Tokenizer, ReplacesInvalidUtf8AsPythonDoes) {
  const Tokenizer tokenizer = parsed(tiny_tokenizer());
  // Left: bytes; right: what Python 3.11 prints for bytes.decode(errors="replace").
  const std::pair<std::string, std::string> cases[] = {
      {"a\xFFz", "a\uFFFDz"},
      {"\xC3", "\uFFFD"},
      {"\xE2\x82", "\uFFFD"},
      {"\xE2\x82z", "\uFFFDz"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98\xE2\x82\xAC", "\uFFFD\u20AC"},
      {"\xC0\x80", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF5z", "\uFFFDz"},
      {"\x80\x80", "\uFFFD\uFFFD"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(tokenizer.encode(bytes), tokenizer.encode(text));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes), false), text);
    const Ids raw(reinterpret_cast<const uint8_t*>(bytes.data()),
                  reinterpret_cast<const uint8_t*>(bytes.data()) + bytes.size());
    EXPECT_EQ(tokenizer.decode(raw, false), text);
  }
}

TEST(Tokenizer, AnswersAboutTokens) {
  nlohmann::json document = tiny_tokenizer({{" ", "a"}});
  document["added_tokens"] = {added_token(300, "<s>", true), added_token(301, "<t>", false)};
  const Tokenizer tokenizer = parsed(document);
  EXPECT_EQ(tokenizer.vocab_size(), 302);
  EXPECT_EQ(tokenizer.token_bytes(256), " a");
  EXPECT_EQ(tokenizer.token_bytes(0x80), "\x80");
  EXPECT_EQ(tokenizer.token_bytes(300), "<s>");
  EXPECT_EQ(tokenizer.token_bytes(299), "");
  EXPECT_EQ(tokenizer.token_bytes(-1), "");
  EXPECT_EQ(tokenizer.token_bytes(302), "");
  EXPECT_EQ(tokenizer.token_id(" a"), 256);
  EXPECT_EQ(tokenizer.token_id("<s>"), 300);
  EXPECT_EQ(tokenizer.token_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token_id(""), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(300));
  EXPECT_FALSE(tokenizer.is_special(301));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(302));
  EXPECT_EQ(tokenizer.decode(Ids{'a', 299, -1, 302, 'b'}, false), "ab");
}

TEST(Tokenizer, ReadsItsConfiguration) {
  TempDir dir;
  dir.write("tokenizer.json", with_bos_and_eos().dump());
  EXPECT_EQ(Tokenizer::load(dir.path()).config().chat_template, "");
  EXPECT_EQ(Tokenizer::load(dir.path()).bos_id(), std::nullopt);
  dir.write("tokenizer_config.json",
            R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "text"})");
  const Tokenizer named = Tokenizer::load(dir.path());
  EXPECT_EQ(named.bos_id(), 256);
  const SpecialTokens tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(named.config().special_tokens, tokens);
  EXPECT_EQ(named.config().chat_template, "text");
  dir.write("tokenizer_config.json",
            R"({"bos_token": null, "chat_template": [{"name": "rag", "template": "1"},
                                                     {"name": "default", "template": "2"}]})");
  EXPECT_EQ(Tokenizer::load(dir.path()).config().chat_template, "2");
  EXPECT_TRUE(Tokenizer::load(dir.path()).config().special_tokens.empty());
  dir.write("chat_template.jinja", "from its file");
  EXPECT_EQ(Tokenizer::load(dir.path()).config().chat_template, "from its file");
}

TEST(Tokenizer, RoundTripsEveryGoldenText) {
  for (const char* family : {"gpt2", "llama3", "smollm2"}) {  // those that do not normalize
    const Tokenizer tokenizer = Tokenizer::load(testing::golden_dir() / family);
    for (const std::string& text : testing::golden_strings()) {
      const Ids ids = tokenizer.encode(text, {.add_special_tokens = false});
      ASSERT_EQ(tokenizer.decode(ids, false), text);
    }
  }
}

TEST(Tokenizer, IsSharedBetweenThreads) {
  const Tokenizer tokenizer = Tokenizer::load(testing::golden_dir() / "qwen");
  const std::string text = testing::golden_text("templates/qwen3.jinja");
  const Ids alone = tokenizer.encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] { result = tokenizer.encode(text); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, alone);
}

// Merging from its definition: the applicable merge of lowest rank, leftmost first, one at a time.
std::vector<std::string> merged_by_definition(
    const std::string& text, const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  while (true) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank] == std::pair(parts[i], parts[i + 1])) best_rank = rank, best = i;
      }
    }
    if (best_rank == merges.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// Random merges over three letters in random order, so that a merge of a longer token often has a
// lower rank than its parts. Trained vocabularies never have that order, and implementations with
// queues can fail on it.
TEST(Tokenizer, MergesAsTheDefinitionSays) {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = 0; i < 25; ++i) {
      const std::pair merge(tokens[random() % tokens.size()], tokens[random() % tokens.size()]);
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      merges.push_back(merge);
      tokens.push_back(merge.first + merge.second);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    const Tokenizer tokenizer = parsed(tiny_tokenizer(merges));
    for (const size_t length : {1u, 2u, 7u, 60u, 127u, 128u, 129u, 130u, 400u}) {
      std::string text;
      while (text.size() < length) text += static_cast<char>('a' + random() % 3);
      std::vector<std::string> parts;
      for (const int32_t id : tokenizer.encode(text)) parts.emplace_back(tokenizer.token_bytes(id));
      ASSERT_EQ(parts, merged_by_definition(text, merges)) << text;
    }
  }
}

}  // namespace
}  // namespace sluice
