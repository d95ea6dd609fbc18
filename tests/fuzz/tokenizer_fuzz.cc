// Reads any text as tokenizer.json: an Error or a tokenizer that satisfies its invariants. A first
// byte of 1 makes the rest a text for a fixed tokenizer, a first byte of 2 makes it a chat
// template.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tiny_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using sluice::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

std::string repaired(std::string_view text) {
  std::string out;
  sluice::unicode::append_repaired(text, false, out);
  return out;
}

void check_text(const Tokenizer& tokenizer, std::string_view text, bool lossless) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  std::string streamed;
  sluice::Detokenizer detokenizer(tokenizer, false);
  for (const int32_t id : ids) {
    require(id >= 0 && id < tokenizer.vocab_size());
    const std::string part = detokenizer.push(id);
    require(sluice::unicode::valid_prefix(part) == part.size());
    streamed += part;
  }
  streamed += detokenizer.finish();
  require(streamed == tokenizer.decode(ids, false));
  if (lossless) require(streamed == repaired(text));
}

// No normalizer and every kind of merge: a short one, a chain, a run.
const Tokenizer& fixed_tokenizer() {
  static const Tokenizer tokenizer = [] {
    nlohmann::json document = sluice::testing::tiny_tokenizer({{"a", "a"},
                                                               {"aa", "aa"},
                                                               {" ", " "},
                                                               {"b", "c"},
                                                               {"a", "bc"},
                                                               {"'", "s"},
                                                               {"\xC3", "\xA9"}});
    const int id = static_cast<int>(document["model"]["vocab"].size());
    document["added_tokens"].push_back(sluice::testing::added_token(id, "<|x|>", true));
    document["added_tokens"].push_back(sluice::testing::added_token(id + 1, "<|", false));
    return Tokenizer::parse(document.dump(), "fixed");
  }();
  return tokenizer;
}

void check_template(std::string_view jinja) {
  const sluice::ChatMessage messages[] = {{"user", "<think>a"}, {"assistant", "</think>\n"}};
  const sluice::ChatTemplate chat(jinja, {{"bos_token", "<s>"}});
  for (const auto& segment : chat.render(messages, {}, nullptr)) require(!segment.text.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    if (input.starts_with('\1')) {
      check_text(fixed_tokenizer(), input.substr(1), true);
    } else if (input.starts_with('\2')) {
      check_template(input.substr(1));
    } else {
      check_text(Tokenizer::parse(input, "fuzz"), input.substr(0, 1000), false);
    }
  } catch (const sluice::Error&) {
  }
  return 0;
}
