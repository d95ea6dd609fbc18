// UTF-8 and the Unicode properties that tokenization needs.
//
// Used inside src/tokenizer/ only. The property table is built from utf8proc on first use (a few
// milliseconds) and never changes afterwards. Thread rule: everything here may be used from any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::unicode {

// Bits of a character's entry in the table.
enum Property : uint8_t {
  kLetter = 1,     // \p{L}
  kNumber = 2,     // \p{N}
  kSpace = 4,      // \s, the White_Space property
  kNumeric = 8,    // characters that the "Digits" pre-tokenizer isolates; \p{N} of a newer Unicode
  kWord = 16,      // \w, for added tokens with single_word
  kNfcFixed = 32,  // never changes under NFC and starts a new normalization segment
  kMark = 64       // \p{M}
};

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// A two-level table over all code points: 256 characters to a page, equal pages stored once.
class PropertyTable {
 public:
  // REQUIRES: c <= 0x10FFFF.
  uint8_t operator[](char32_t c) const { return pages_[page_of_[c >> 8]][c & 0xFF]; }
  // The table; built by the first call, which C++ makes safe for several threads.
  static const PropertyTable& get();

 private:
  PropertyTable();
  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<std::array<uint8_t, 256>> pages_;
};

struct Decoded {
  char32_t c;
  int num_bytes;
};

// The character that starts at `p`. REQUIRES: valid UTF-8 there.
inline Decoded decode(const char* p) {
  const auto byte = [p](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

// The last character of `text`. REQUIRES: valid UTF-8, not empty.
Decoded decode_last(std::string_view text);

// Appends the UTF-8 form of `c`. REQUIRES: c <= 0x10FFFF.
void append(char32_t c, std::string& out);

// Classification of the bytes at the start of a string.
enum class Utf8Kind {
  kValid,      // a character of `num_bytes`
  kInvalid,    // `num_bytes` that together become one U+FFFD
  kIncomplete  // the bytes end inside a character that may still become valid
};
struct Utf8Unit {
  Utf8Kind kind;
  int num_bytes;
};

// Looks at the first character of `bytes`, which must not be empty.
//
// An ill-formed sequence is cut into maximal subparts, one U+FFFD each: what Python's
// bytes.decode(errors="replace") does. Source: The Unicode Standard, chapter 3, table 3-7 and the
// practice recommended for U+FFFD substitution.
Utf8Unit next_unit(std::string_view bytes);

// The number of bytes at the front of `bytes` that are well-formed UTF-8.
size_t valid_prefix(std::string_view bytes);

// Appends `bytes` to `out` with every ill-formed sequence replaced by U+FFFD, and returns the
// number of bytes consumed. With `hold_back` an incomplete last character is not consumed: more
// bytes may complete it.
size_t append_repaired(std::string_view bytes, bool hold_back, std::string& out);

}  // namespace sluice::unicode
