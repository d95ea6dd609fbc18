// NFC and the property table against utf8proc's own normalizer and categories.
#include "tokenizer/unicode.h"

#include <cstdlib>
#include <memory>
#include <random>

#include <gtest/gtest.h>
#include <utf8proc.h>

#include "tokenizer/nfc.h"

namespace sluice::unicode {
namespace {

std::string nfc(const std::string& text) {
  std::string out;
  append_nfc(text, out);
  return out;
}

std::string utf8proc_nfc(const std::string& text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.c_str());
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> result(utf8proc_NFC(bytes),
                                                                       &std::free);
  return reinterpret_cast<const char*>(result.get());
}

std::string utf8(std::initializer_list<char32_t> characters) {
  std::string text;
  for (const char32_t c : characters) append(c, text);
  return text;
}

bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }

// Scripts newer than Unicode 9.0 are not normalised on purpose; see nfc.cc.
bool is_young(char32_t c) { return c == 0x11938; }

TEST(Nfc, EqualsUtf8procOnEveryCharacter) {
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (is_surrogate(c) || is_young(c)) continue;
    const std::string text = utf8({c});
    ASSERT_EQ(nfc(text), utf8proc_nfc(text)) << std::hex << static_cast<uint32_t>(c);
  }
}

// Sequences from a pool of everything that composes, reorders or blocks in old scripts.
TEST(Nfc, EqualsUtf8procOnRandomSequences) {
  const char32_t pool[] = {
      'a',    'q',    'e',     0xC5,    0xE9,    0x1EAD,  0x1E9B, 0x212B, 0x300,  0x301,  0x302,
      0x307,  0x30A,  0x323,   0x327,   0x31B,   0x316,   0x345,  0x344,  0x3B1,  0x1F80, 0x915,
      0x93C,  0x958,  0x9C7,   0x9BE,   0x1100,  0x1161,  0x11A8, 0xAC00, 0xAC01, 0xD7A3, 0x11C2,
      0x1175, 0x5D0,  0x5B8,   0x5B7,   0x5BC,   0x653,   0x627,  0xF71,  0xF72,  0xF73,  0x3099,
      0x304B, 0xF900, 0x2F800, 0x1D15E, 0x110A5, 0x110BA, 0x20,   0x4E2D};
  std::mt19937 random(11);
  for (int i = 0; i < 200000; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 7; n > 0; --n) append(pool[random() % std::size(pool)], text);
    ASSERT_EQ(nfc(text), utf8proc_nfc(text)) << i;
  }
}

// utf8proc 2.8 drops U+11A7 after a syllable; it is not a trailing consonant and must stay.
TEST(Nfc, KeepsTheCharacterBeforeTheTrailingConsonants) {
  EXPECT_EQ(nfc(utf8({0xAC00, 0x11A7})), utf8({0xAC00, 0x11A7}));
}

// U+1DF9 has class 220 since Unicode 10; by 9.0 it is unassigned and nothing moves across it.
TEST(Nfc, LeavesYoungMarksAlone) {
  EXPECT_EQ(nfc(utf8({'a', 0x301, 0x1DF9})), utf8({0xE1, 0x1DF9}));
  EXPECT_EQ(nfc(utf8({0x1DE2, 0x1DF9})), utf8({0x1DE2, 0x1DF9}));
  EXPECT_EQ(nfc(utf8({0x11935, 0x11930})), utf8({0x11935, 0x11930}));
}

TEST(Properties, EqualUtf8procsCategories) {
  const PropertyTable& table = PropertyTable::get();
  for (char32_t c = 0; c < 0x110000; ++c) {
    const std::string category = utf8proc_category_string(static_cast<utf8proc_int32_t>(c));
    if (category[0] == 'C') continue;  // unassigned in this utf8proc, perhaps not in the table
    EXPECT_EQ((table[c] & kLetter) != 0, category[0] == 'L') << static_cast<uint32_t>(c);
    EXPECT_EQ((table[c] & kNumber) != 0, category[0] == 'N') << static_cast<uint32_t>(c);
    if (category[0] == 'Z' && c != 0x180E) {
      EXPECT_TRUE(table[c] & kSpace) << static_cast<uint32_t>(c);
    }
  }
  EXPECT_TRUE(table['\t'] & kSpace);
  EXPECT_TRUE(table[0x85] & kSpace);
  EXPECT_FALSE(table[0x200B] & kSpace);
  EXPECT_FALSE(table[0x1C] & kSpace);
}

TEST(Utf8, AppendAndDecodeAreInverse) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (is_surrogate(c)) continue;
    std::string text;
    append(c, text);
    ASSERT_EQ(valid_prefix(text), text.size());
    ASSERT_EQ(decode(text.data()).c, c);
    ASSERT_EQ(decode_last("x" + text).c, c);
  }
}

}  // namespace
}  // namespace sluice::unicode
