// Writes tokenizer.json anew from the metadata, so that one reader checks both forms.
#include "tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "io/json_type.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/unicode.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";

// The types of tokens. Source: the gguf package's TokenType.
enum TokenType : int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

// What a name in tokenizer.ggml.pre stands for: what the models' own tokenizer.json says.
// Source: llama.cpp's llama-vocab.cpp (names, BOS) and the models' files.
struct Pre {
  std::string_view name;
  SplitKind split;
  bool digits_first = false;   // each digit is cut off before
  bool nfc = false;            // llama.cpp leaves it out
  bool ignore_merges = false;  // a word that is a token stays whole
  bool add_bos = false;        // unless add_bos_token says otherwise
};
constexpr auto kPres = std::to_array<Pre>({
    {.name = "llama-bpe", .split = SplitKind::kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .split = SplitKind::kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .split = SplitKind::kLlama3, .ignore_merges = true, .add_bos = true},
    // Smaug, SmolLM3: cut as Llama 3, and llama.cpp has neither of its other rules for them.
    {.name = "smaug-bpe", .split = SplitKind::kLlama3},
    {.name = "qwen2", .split = SplitKind::kQwen2, .nfc = true},
    {.name = "qwen35", .split = SplitKind::kQwen35, .nfc = true},
    {.name = "smollm", .split = SplitKind::kGpt2, .digits_first = true},
    {.name = "gpt-2", .split = SplitKind::kGpt2},
});

[[noreturn]] void refuse(const GgufFile& file, std::string message) {
  throw Error(ErrorCode::kUnsupported, std::move(message), file.name());
}

// Another kind of vocabulary, or another way to split, gives other ids: text without sense, and no
// error would show it. "default" is what llama.cpp assumes of files that do not say how to split.
const Pre& find_pre(const GgufFile& file) {
  const std::string model = file.get_string("tokenizer.ggml.model");
  if (model != "gpt2") {
    refuse(file,
           fmt::format("tokenizer.ggml.model is \"{}\"; byte-level BPE (\"gpt2\") is supported, "
                       "choose a model that has it",
                       printable(model)));
  }
  const std::string name = file.find_string("tokenizer.ggml.pre").value_or("default");
  const auto found = std::ranges::find(kPres, name, &Pre::name);
  if (found != kPres.end()) return *found;
  refuse(file, fmt::format("tokenizer.ggml.pre is \"{}\", which does not say how the model's own "
                           "tokenizer splits text; llama-bpe, smaug-bpe, qwen2, qwen35, smollm and "
                           "gpt-2 are known: take a newer file, or the model's safetensors",
                           printable(name)));
}

// A step with the regular expression of a kind, which the reader recognises again.
json split_step(SplitKind kind) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(regex_of_split_kind(kind))}}},
          {"behavior", "Isolated"}};
}

// The steps in the order of tokenizer.json; the last one turns bytes into their letters.
json pre_tokenizer_of(const Pre& pre) {
  json steps = json::array();
  if (pre.digits_first) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  const bool is_built_in = pre.split == kByteLevelSplit;
  if (!is_built_in) steps.push_back(split_step(pre.split));
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", is_built_in}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// One type for each token; all are normal if the file has none.
std::vector<int64_t> token_types(const GgufFile& file, size_t num_tokens) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  if (!file.has(kKey)) return std::vector<int64_t>(num_tokens, kNormal);
  std::vector<int64_t> types = file.get_ints(kKey, 0, 100);
  if (types.size() != num_tokens) {
    file.fail(kKey, fmt::format("as long as {}, {}", kTokensKey, num_tokens));
  }
  return types;
}

// Adds tokens to the document: normal ones to the vocabulary, the others as added tokens, of which
// control tokens are special. Unused ids (rows that pad the embedding, "[PAD151936]") stay without
// a token: the model was never trained to give them, and their names must not be found in a text.
void add_tokens(const GgufFile& file, json& vocab, json& added) {
  const std::vector<std::string_view> tokens = file.get_strings(kTokensKey);
  const std::vector<int64_t> types = token_types(file, tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == kUnused) continue;
    if (types[id] == kNormal) {
      const auto [slot, is_new] = vocab.emplace(std::string(tokens[id]), id);
      if (is_new) continue;
      file.fail(kTokensKey, fmt::format("without repeats, but ids {} and {} are \"{}\"",
                                        slot->get<size_t>(), id, printable(tokens[id])));
    }
    if (types[id] != kControl && types[id] != kUserDefined) {
      refuse(file, fmt::format("tokenizer.ggml.token_type of \"{}\" is {}; byte-level BPE has the "
                               "types 1, 3, 4 and 5",
                               printable(tokens[id]), types[id]));
    }
    added.push_back({{"id", id},
                     {"content", std::string(tokens[id])},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", types[id] == kControl}});
  }
}

// The id of a special token: "bos_token_id". It must be that of a token.
std::optional<int64_t> special_id(const GgufFile& file, std::string_view name) {
  const auto num_tokens = static_cast<int64_t>(file.get_strings(kTokensKey).size());
  return file.find_int(fmt::format("{}{}", kPrefix, name), 0, num_tokens - 1);
}

// A template that puts BOS before a text and EOS after it, as the file wants; null if neither.
json post_processor_of(const GgufFile& file, const Pre& pre) {
  const auto wants = [&](std::string_view name, bool by_default) {
    return file.find_bool(fmt::format("{}add_{}_token", kPrefix, name)).value_or(by_default);
  };
  json single = json::array(), special_tokens = json::object();
  const auto add = [&](const std::string& name) {
    const auto id = special_id(file, name + "_token_id");
    if (!id) file.fail(fmt::format("{}{}_token_id", kPrefix, name), "the id of a token to add");
    special_tokens[name] = {{"ids", json::array({*id})}};
    single.push_back({{"SpecialToken", {{"id", name}}}});
  };
  const bool adds_bos = wants("bos", pre.add_bos), adds_eos = wants("eos", false);
  if (!adds_bos && !adds_eos) return nullptr;
  if (adds_bos) add("bos");
  single.push_back({{"Sequence", {{"id", "A"}}}});
  if (adds_eos) add("eos");
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special_tokens}};
}

// Texts that others get must be UTF-8, which the file does not promise.
std::string repaired(std::string_view text) {
  std::string result;
  unicode::append_repaired(text, false, result);
  return result;
}

}  // namespace

TokenizerFile read_gguf_tokenizer(const GgufFile& file) {
  const Pre& pre = find_pre(file);
  if (file.find_bool("tokenizer.ggml.add_space_prefix").value_or(false)) {
    refuse(file, "tokenizer.ggml.add_space_prefix is true; byte-level BPE is supported without it");
  }
  json vocab = json::object(), added = json::array(), merges = json::array();
  add_tokens(file, vocab, added);
  for (const std::string_view merge : file.get_strings("tokenizer.ggml.merges")) {
    merges.push_back(std::string(merge));
  }
  json document = {{"added_tokens", std::move(added)},
                   {"normalizer", nullptr},
                   {"pre_tokenizer", pre_tokenizer_of(pre)},
                   {"post_processor", post_processor_of(file, pre)},
                   {"decoder", {{"type", "ByteLevel"}}},
                   {"model",
                    {{"type", "BPE"},
                     {"ignore_merges", pre.ignore_merges},
                     {"vocab", std::move(vocab)},
                     {"merges", std::move(merges)}}}};
  if (pre.nfc) document["normalizer"] = {{"type", "NFC"}};
  return read_tokenizer_document(document, file.name() + ": tokenizer.ggml");
}

TokenizerConfig read_gguf_tokenizer_config(const GgufFile& file) {
  TokenizerConfig config;
  if (const auto text = file.find_string("tokenizer.chat_template")) {
    config.chat_template = repaired(*text);
  }
  if (!file.has(kTokensKey)) return config;
  const std::vector<std::string_view> tokens = file.get_strings(kTokensKey);
  using Name = std::pair<std::string_view, std::string_view>;
  for (const auto& [key, name] :
       {Name{"bos_token_id", "bos_token"}, Name{"eos_token_id", "eos_token"},
        Name{"unknown_token_id", "unk_token"}, Name{"padding_token_id", "pad_token"}}) {
    if (const auto id = special_id(file, key)) {
      config.special_tokens.emplace(name, repaired(tokens[static_cast<size_t>(*id)]));
    }
  }
  return config;
}

}  // namespace sluice
