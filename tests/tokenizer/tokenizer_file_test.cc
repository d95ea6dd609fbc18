// Errors of tokenizer.json: each test breaks one thing in a valid file and expects an error that
// names it.
#include "tokenizer/tokenizer_file.h"

#include <functional>

#include <gtest/gtest.h>

#include "core/printable.h"
#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/golden.h"
#include "tokenizer/tiny_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::added_token;
using testing::tiny_tokenizer;

// The error for a valid file after `change`.
std::string error_after(ErrorCode code, const std::function<void(json&)>& change) {
  json document = tiny_tokenizer({{"a", "b"}});
  change(document);
  const std::string text =
      expect_error(code, [&] { parse_tokenizer_file(document.dump(), "tokenizer.json"); });
  EXPECT_TRUE(text.starts_with("tokenizer.json")) << text;
  return text;
}

struct Case {
  const char* name;
  ErrorCode code;
  std::function<void(json&)> change;
  std::vector<std::string> parts;  // of the error's text
};

void expect_all(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const std::string text = error_after(one.code, one.change);
    for (const std::string& part : one.parts) EXPECT_TRUE(contains(text, part));
  }
}

constexpr ErrorCode kModel = ErrorCode::kModel;
constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;

TEST(TokenizerFile, TheUnbrokenFileWorks) {
  const TokenizerFile file = parse_tokenizer_file(tiny_tokenizer({{"a", "b"}}).dump(), "t");
  EXPECT_EQ(file.vocabulary.num_ids(), 257);
  EXPECT_EQ(file.merges.find('a', 'b').id, 256);
  EXPECT_EQ(file.merges.find('b', 'a').rank, kNoRank);
}

TEST(TokenizerFile, RefusesBrokenVocabularies) {
  expect_all({
      {"no model", kModel, [](json& d) { d.erase("model"); }, {"model", "missing"}},
      {"model is a list", kModel, [](json& d) { d["model"] = json::array(); }, {"model"}},
      {"no vocab", kModel, [](json& d) { d["model"].erase("vocab"); }, {"vocab", "missing"}},
      {"empty vocab", kModel, [](json& d) { d["model"]["vocab"] = json::object(); }, {"vocab"}},
      {"vocab is a list", kModel, [](json& d) { d["model"]["vocab"] = {1}; }, {"vocab"}},
      {"duplicate id", kModel, [](json& d) { d["model"]["vocab"]["a"] = 'b'; }, {"98", "\"a\""}},
      {"negative id", kModel, [](json& d) { d["model"]["vocab"]["a"] = -1; }, {"\"a\"", "-1"}},
      {"huge id", kModel, [](json& d) { d["model"]["vocab"]["a"] = 4194304; }, {"4194304"}},
      {"wrapping id",
       kModel,
       [](json& d) { d["model"]["vocab"]["a"] = UINT64_MAX; },
       {"18446744073709551615"}},
      {"fractional id", kModel, [](json& d) { d["model"]["vocab"]["a"] = 1.5; }, {"1.5"}},
      {"text as id", kModel, [](json& d) { d["model"]["vocab"]["a"] = "1"; }, {"\"1\""}},
      {"empty token", kModel, [](json& d) { d["model"]["vocab"][""] = 300; }, {"300", "empty"}},
      {"no byte at all",
       kModel,
       [](json& d) {
         d["model"]["vocab"] = {{"ab", 0}};
         d["model"]["merges"] = json::array();
       },
       {"none of the 256 bytes"}},
      {"unknown token is none of the model's",
       kModel,
       [](json& d) {
         d["model"]["vocab"].erase("z");
         d["added_tokens"] = {added_token(300, "<unk>", true)};
         d["model"]["unk_token"] = "<unk>";
       },
       {"unk_token", "<unk>", "255 of the 256 bytes"}},
  });
}

TEST(TokenizerFile, RefusesBrokenMerges) {
  const auto merges = [](json value) { return [value](json& d) { d["model"]["merges"] = value; }; };
  expect_all({
      {"none", kModel, [](json& d) { d["model"].erase("merges"); }, {"merges", "missing"}},
      {"an object", kModel, merges(json::object()), {"merges"}},
      {"unknown left", kModel, merges({"zz a"}), {"merges[0]", "\"zz\""}},
      {"unknown right",
       kModel,
       merges(json::array({json::array({"a", "yy"})})),
       {"merges[0]", "\"yy\""}},
      {"unknown result", kModel, merges({"a b", "b a"}), {"merges[1]", "\"ba\""}},
      {"one part", kModel, merges({"ab"}), {"merges[0]", "\"ab\""}},
      {"three parts", kModel, merges({"a b c"}), {"merges[0]", "\"a b c\""}},
      {"three items", kModel, merges(json::array({json::array({"a", "b", "c"})})), {"merges[0]"}},
      {"a number", kModel, merges({7}), {"merges[0]", "7"}},
  });
}

TEST(TokenizerFile, RefusesBrokenAddedTokens) {
  const auto added = [](json value) { return [value](json& d) { d["added_tokens"] = value; }; };
  json no_content = added_token(300, "x", true);
  no_content.erase("content");
  json unknown_field = added_token(300, "x", true);
  unknown_field["weight"] = 1;
  expect_all({
      {"an object", kModel, added(json::object()), {"added_tokens"}},
      {"numbers", kModel, added({1}), {"added_tokens[0]"}},
      {"no content", kModel, added({no_content}), {"added_tokens[0]", "content", "missing"}},
      {"unknown field", kUnsupported, added({unknown_field}), {"added_tokens[0]", "weight"}},
      {"empty", kModel, added({added_token(300, "", true)}), {"300", "empty"}},
      {"id of another", kModel, added({added_token('a', "<s>", true)}), {"97", "<s>", "\"a\""}},
      {"two ids",
       kModel,
       added({added_token(300, "<s>", true), added_token(301, "<s>", true)}),
       {"<s>", "300", "301"}},
      {"one id twice",
       kModel,
       added({added_token(300, "<s>", true), added_token(300, "<t>", true)}),
       {"300", "<s>", "<t>"}},
      {"id out of range", kModel, added({added_token(1 << 22, "<s>", true)}), {"4194304"}},
  });
}

TEST(TokenizerFile, RefusesWhatItDoesNotDo) {
  const auto model = [](const char* key, json value) {
    return [key, value](json& d) { d["model"][key] = value; };
  };
  const auto part = [](const char* key, const char* text) {
    return [key, text](json& d) { d[key] = json::parse(text); };
  };
  expect_all({
      {"version", kUnsupported, [](json& d) { d["version"] = "2.0"; }, {"version", "2.0"}},
      {"top field", kUnsupported, [](json& d) { d["extra"] = 1; }, {"extra"}},
      {"model", kUnsupported, model("type", "Unigram"), {"type", "Unigram"}},
      {"model field", kUnsupported, model("unk_id", 0), {"unk_id"}},
      {"dropout", kUnsupported, model("dropout", 0.1), {"dropout", "0.1"}},
      {"prefix", kUnsupported, model("continuing_subword_prefix", "##"), {"##"}},
      {"suffix", kUnsupported, model("end_of_word_suffix", "</w>"), {"</w>"}},
      {"byte fallback", kUnsupported, model("byte_fallback", true), {"byte_fallback"}},
      {"ignore_merges", kModel, model("ignore_merges", 1), {"ignore_merges", "1"}},
      {"normalizer", kUnsupported, part("normalizer", R"({"type": "NFKC"})"), {"NFKC"}},
      {"nested normalizer",
       kUnsupported,
       part("normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})"),
       {"normalizers[0]", "Lowercase"}},
      {"pre-tokenizer",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "Metaspace"})"),
       {"Metaspace"}},
      {"no pre-tokenizer", kUnsupported, part("pre_tokenizer", "null"), {"pre_tokenizer"}},
      {"no ByteLevel",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "Digits", "individual_digits": true})"),
       {"ByteLevel"}},
      {"prefix space",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": true})"),
       {"add_prefix_space"}},
      {"behind ByteLevel",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [
         {"type": "ByteLevel"}, {"type": "Digits", "individual_digits": true}]})"),
       {"pretokenizers[1]", "Digits"}},
      {"regex",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "Split", "behavior": "Isolated", "invert": false,
         "pattern": {"Regex": "\\w+"}})"),
       {"Regex", "\\w+"}},
      {"split by string",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "Split", "behavior": "Isolated", "invert": false,
         "pattern": {"String": " "}})"),
       {"String"}},
      {"behavior",
       kUnsupported,
       part("pre_tokenizer", R"({"type": "Split", "behavior": "Removed", "pattern": {}})"),
       {"Removed"}},
      {"post-processor",
       kUnsupported,
       part("post_processor", R"({"type": "BertProcessing"})"),
       {"BertProcessing"}},
      {"template without text",
       kUnsupported,
       part("post_processor",
            R"({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}})"),
       {"single"}},
      {"template of an unknown token",
       kModel,
       part("post_processor", R"({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]})"),
       {"<s>", "missing"}},
      {"template with an unknown id",
       kModel,
       part("post_processor", R"({"type": "TemplateProcessing", "pair": [],
         "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}},
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]})"),
       {"<s>", "ids", "257"}},
      {"decoder", kUnsupported, part("decoder", R"({"type": "WordPiece"})"), {"WordPiece"}},
      {"no decoder", kModel, part("decoder", "null"), {"decoder"}},
  });
}

TEST(TokenizerFile, LimitsWhatAFileCanAskFor) {
  const std::string text =
      error_after(kModel, [](json& d) { d["model"]["merges"] = std::vector<int>(kMaxMerges + 1); });
  EXPECT_TRUE(contains(text, "merges is a list of 2097153; it must be a list of at most 2097152"));
  TempDir dir;
  dir.write("tokenizer.json", "");
  std::filesystem::resize_file(dir.path() / "tokenizer.json", kMaxTokenizerFileBytes + 1);
  EXPECT_TRUE(contains(expect_error(kModel, [&] { Tokenizer::load(dir.path()); }), "67108864"));
}

// An error is one printable line of bounded length, for any contents of the file.
TEST(TokenizerFile, ErrorsShowNothingThatATerminalObeys) {
  const std::string evil = "\x1b[2J\nsluice: all is well\r" + std::string(100000, 'x');
  const std::function<void(json&)> changes[] = {
      [&](json& d) { d[evil] = 1; },
      [&](json& d) { d["version"] = evil; },
      [&](json& d) { d["model"][evil] = 1; },
      [&](json& d) { d["model"]["vocab"][evil] = -1; },
      [&](json& d) { d["model"]["vocab"][evil] = 'a'; },
      [&](json& d) { d["model"]["merges"] = {evil + " a"}; },
      [&](json& d) {
        d["model"]["merges"] = {json::array({evil, "a"})};
      },
      [&](json& d) { d["model"]["merges"] = {json::array({evil})}; },
      [&](json& d) { d["model"]["type"] = evil; },
      [&](json& d) { d["added_tokens"] = {added_token('a', evil, true)}; },
      [&](json& d) {
        d["added_tokens"] = {added_token(300, evil, true), added_token(301, evil, true)};
      },
      [&](json& d) {
        d["added_tokens"] = {added_token(300, evil, true), added_token(300, "y", true)};
      },
      [&](json& d) {
        d["added_tokens"] = {{{evil, 1}}};
      },
      [&](json& d) {
        d["normalizer"] = {{"type", evil}};
      },
      [&](json& d) {
        d["pre_tokenizer"] = {{"type", evil}};
      },
      [&](json& d) {
        d["pre_tokenizer"] = {
            {"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", evil}}}};
      },
      [&](json& d) {
        d["post_processor"] = {{"type", "TemplateProcessing"},
                               {"special_tokens", json::object()},
                               {"single", {{{"SpecialToken", {{"id", evil}}}}}}};
      },
      [&](json& d) {
        d["post_processor"] = {{"type", "TemplateProcessing"},
                               {"special_tokens", {{evil, {{"ids", {-1}}}}}},
                               {"single", {{{"SpecialToken", {{"id", evil}}}}}}};
      },
      [&](json& d) {
        d["decoder"] = {{"type", evil}};
      },
  };
  for (const auto& change : changes) {
    json document = tiny_tokenizer({{"a", "b"}});
    change(document);
    try {
      parse_tokenizer_file(document.dump(), "tokenizer.json");
      ADD_FAILURE() << "no error was thrown";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_LT(text.size(), 500u);
      EXPECT_EQ(printable(text, text.size()), text);
    }
  }
}

TEST(TokenizerFile, LastOfEqualMergesCounts) {
  // As in the reference: "a b" again at the end takes that rank, so "b c" now goes first.
  json document = tiny_tokenizer({{"a", "b"}, {"b", "c"}});
  document["model"]["merges"].push_back("a b");
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "t");
  EXPECT_EQ(tokenizer.encode("abc"), (std::vector<int32_t>{'a', 257}));
}

TEST(TokenizerFile, DuplicateKeysAndSyntaxErrorsNameTheFile) {
  EXPECT_TRUE(
      contains(expect_error(kModel, [] { parse_tokenizer_file("{", "t.json"); }), "t.json"));
  const std::string twice = R"({"model": {"vocab": {"a": 1, "a": 2}}})";
  EXPECT_TRUE(
      contains(expect_error(kModel, [&] { parse_tokenizer_file(twice, "t.json"); }), "\"a\""));
}

TEST(TokenizerDirectory, ErrorsNameTheFile) {
  TempDir dir;
  EXPECT_TRUE(
      contains(expect_error(kModel, [&] { Tokenizer::load(dir.path()); }), "tokenizer.json"));
  dir.write("tokenizer.json", tiny_tokenizer().dump());
  dir.write("tokenizer_config.json", R"({"bos_token": 1})");
  const std::string text = expect_error(kModel, [&] { Tokenizer::load(dir.path()); });
  EXPECT_TRUE(contains(text, "tokenizer_config.json"));
  EXPECT_TRUE(contains(text, "bos_token"));
  dir.write("tokenizer_config.json", R"({"chat_template": 7})");
  EXPECT_TRUE(
      contains(expect_error(kModel, [&] { Tokenizer::load(dir.path()); }), "chat_template is 7"));
}

}  // namespace
}  // namespace sluice
