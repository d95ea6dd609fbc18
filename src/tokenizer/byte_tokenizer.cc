// Writes a minimal tokenizer.json and parses it, so that no other way to make a Tokenizer is
// needed.
#include "tokenizer/byte_tokenizer.h"

#include <fmt/format.h>

#include "tokenizer/byte_level.h"

namespace sluice {
namespace {

// UTF-8 of a code point below 0x800.
std::string utf8_of(uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

}  // namespace

Tokenizer make_byte_tokenizer() {
  std::string vocab;
  for (uint32_t code = '!'; code < kAlphabetEnd; ++code) {
    const std::string character = utf8_of(code);
    const std::optional<std::string> bytes = bytes_of_token(character);
    if (!bytes) continue;
    // The two characters of the alphabet that JSON escapes; there are no control characters.
    const bool escape = code == '"' || code == '\\';
    vocab += fmt::format("{}\"{}{}\": {}", vocab.empty() ? "" : ", ", escape ? "\\" : "", character,
                         static_cast<unsigned char>((*bytes)[0]));
  }
  const std::string json =
      R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},)"
      R"( "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [], "vocab": {)" +
      vocab + "}}}";
  return Tokenizer::parse(json, "byte tokenizer");
}

}  // namespace sluice
