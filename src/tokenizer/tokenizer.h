// Tokenizer: converts text to token ids and back by the model's tokenizer.json or GGUF file.
//
// Used by the engine and the command line. Thread rule: immutable after loading; any number of
// threads may call it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/encode_options.h"
#include "tokenizer/tokenizer_config.h"

namespace sluice {

// A part of a text with its own rule for special tokens: they are parsed in the parts of a template
// and not in the contents of messages.
struct TextSegment {
  std::string text;
  bool parse_special = false;
};

class Tokenizer {
 public:
  // Reads tokenizer.json and, when they are there, tokenizer_config.json and chat_template.jinja;
  // or all of it from a GGUF file.
  //
  // Errors: kModel and kUnsupported that name file, field and value (see tokenizer_file.h).
  static Tokenizer load(const std::filesystem::path& model_dir);
  // The same from the text of a tokenizer.json alone; `name` opens error texts.
  static Tokenizer parse(std::string_view tokenizer_json, std::string_view name);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The ids of a text.
  //
  // Ill-formed UTF-8 is first replaced by U+FFFD as Python's bytes.decode(errors="replace") does.
  // Bytes that the vocabulary has no token for are left out (or become its unk_token).
  // Added tokens that their file does not call special (Qwen3's <think>) are always found.
  // Time: n log n in the longest word, else linear; memory a few times the text.
  // Errors: kInvalidArgument for a text of 4 GiB or more.
  std::vector<int32_t> encode(std::string_view utf8, const EncodeOptions& options = {}) const;

  // The ids of a whole prompt: as encode(), but if options.parse_special is set and the text begins
  // with the special tokens that would be added before it (a BOS), they are not added again.
  std::vector<int32_t> encode_prompt(std::string_view utf8, const EncodeOptions& options) const;

  // The ids of segments as one text: words may cross borders, added tokens may not, and each
  // segment is repaired and normalized separately.
  std::vector<int32_t> encode(std::span<const TextSegment> segments, bool add_special_tokens) const;

  // The text of ids: their bytes concatenated, ill-formed UTF-8 replaced by U+FFFD. Ids without a
  // token (models pad their vocabulary) give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes of a token, perhaps a part of a character; empty for an id without a token.
  std::string_view token_bytes(int32_t id) const;

  // The id of a token's bytes or of an added token's content.
  std::optional<int32_t> token_id(std::string_view content) const;

  // One more than the largest id. A model's logits may be wider.
  int32_t vocab_size() const;
  // Whether `id` is an added token marked as special; false for ids out of range.
  bool is_special(int32_t id) const;

  // The id of the BOS token that tokenizer_config.json names, if any.
  std::optional<int32_t> bos_id() const;
  // Chat template and special tokens, for ChatTemplate.
  const TokenizerConfig& config() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace sluice
