// The alphabet as a table from code points (below U+0144) to bytes.
#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "tokenizer/unicode.h"

namespace sluice {
namespace {

constexpr int16_t kNoByte = -1;

// Inverts GPT-2's bytes_to_unicode: printable bytes are their own code point, and the other 68 get
// the code points from U+0100 on, in order of the bytes.
constexpr std::array<int16_t, kAlphabetEnd> make_alphabet() {
  std::array<int16_t, kAlphabetEnd> byte_of{};
  for (auto& byte : byte_of) byte = kNoByte;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    byte_of[itself ? static_cast<char32_t>(byte) : next++] = static_cast<int16_t>(byte);
  }
  return byte_of;
}

constexpr std::array<int16_t, kAlphabetEnd> kByteOf = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view content) {
  std::string bytes;
  for (size_t pos = 0; pos < content.size();) {
    const unicode::Decoded decoded = unicode::decode(content.data() + pos);
    if (decoded.c >= kAlphabetEnd || kByteOf[decoded.c] == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(kByteOf[decoded.c]));
    pos += static_cast<size_t>(decoded.num_bytes);
  }
  return bytes;
}

}  // namespace sluice
