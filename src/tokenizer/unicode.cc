// The property table and UTF-8 repair.
#include "tokenizer/unicode.h"

#include <cstring>
#include <map>

#include <utf8proc.h>

#include "tokenizer/nfc.h"

namespace sluice::unicode {
namespace {

struct Range {
  char32_t first, last;
};

// Debian's utf8proc has Unicode 15.0, while the regular expressions of the reference tokenizers use
// 16.0. Letters, numbers and marks added in between are listed here, so that both split text at the
// same places. Source: DerivedGeneralCategory of Unicode 15.1 and 16.0.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr Range kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                 {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                 {0x1E5F1, 0x1E5FA}};
constexpr Range kNewMarks[] = {{0x0897, 0x0897},   {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC},
                               {0x113B8, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
                               {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2},
                               {0x113E1, 0x113E2}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F},
                               {0x1E5EE, 0x1E5EF}};
// The "Digits" pre-tokenizer of the reference uses Rust's tables, of Unicode 17.0.
constexpr Range kNewNumerics[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};
// \w is Alphabetic, Mark, Nd, Pc and Join_Control; these have another general category.
constexpr Range kOtherWords[] = {
    {0x200C, 0x200D}, {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
// The property White_Space.
constexpr Range kSpaces[] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                             {0x205F, 0x205F}, {0x3000, 0x3000}};

// The bits that follow from the general category by utf8proc.
uint8_t category_bits(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kWord;
    case UTF8PROC_CATEGORY_ND:
      return kNumber | kNumeric | kWord;
    case UTF8PROC_CATEGORY_NL:
      return kNumber | kNumeric | kWord;
    case UTF8PROC_CATEGORY_NO:
      return kNumber | kNumeric;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark | kWord;
    case UTF8PROC_CATEGORY_PC:
      return kWord;
    default:
      return 0;
  }
}

// Sets `bits` for every character of the ranges.
template <size_t n>
void set_ranges(const Range (&ranges)[n], int bits, std::vector<uint8_t>& flat) {
  for (const Range& range : ranges) {
    for (char32_t c = range.first; c <= range.last; ++c) flat[c] |= static_cast<uint8_t>(bits);
  }
}

// One byte of Property bits for each code point.
std::vector<uint8_t> flat_properties() {
  std::vector<uint8_t> flat(0x110000);
  for (char32_t c = 0; c < 0x110000; ++c) flat[c] = category_bits(c);
  set_ranges(kNewLetters, kLetter | kWord, flat);
  set_ranges(kNewNumbers, kNumber | kNumeric | kWord, flat);
  set_ranges(kNewMarks, kMark, flat);
  set_ranges(kNewNumerics, kNumeric, flat);
  set_ranges(kOtherWords, kWord, flat);
  set_ranges(kSpaces, kSpace, flat);
  mark_nfc_fixed(flat);
  return flat;
}

}  // namespace

// Splits the flat table into pages and stores equal pages once; most pages of the code space are.
PropertyTable::PropertyTable() {
  const std::vector<uint8_t> flat = flat_properties();
  std::map<std::array<uint8_t, 256>, uint16_t> known;
  for (size_t page = 0; page < page_of_.size(); ++page) {
    std::array<uint8_t, 256> entries;
    std::memcpy(entries.data(), &flat[page * 256], 256);
    const auto [it, added] = known.emplace(entries, static_cast<uint16_t>(pages_.size()));
    if (added) pages_.push_back(entries);
    page_of_[page] = it->second;
  }
}

const PropertyTable& PropertyTable::get() {
  static const PropertyTable table;
  return table;
}

// Steps back over continuation bytes (10xxxxxx) to the lead byte.
Decoded decode_last(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return decode(text.data() + start);
}

// UTF-8: 1 byte below U+0080, 2 below U+0800, 3 below U+10000, else 4.
void append(char32_t c, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | ((c >> 6) & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | ((c >> 12) & 0x3F)), put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

// 0xC0 and 0xC1 would start overlong forms; leads above 0xF4 would exceed U+10FFFF.
Utf8Unit next_unit(std::string_view bytes) {
  const auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::kInvalid, 1};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is restricted further: no overlong forms, surrogates, or above U+10FFFF.
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {Utf8Kind::kIncomplete, i};
    const unsigned next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return {Utf8Kind::kInvalid, i};
    low = 0x80, high = 0xBF;
  }
  return {Utf8Kind::kValid, length};
}

size_t valid_prefix(std::string_view bytes) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    uint64_t word = 0;
    if (bytes.size() - pos >= sizeof(word)) {  // eight ASCII bytes at a time
      std::memcpy(&word, bytes.data() + pos, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        pos += sizeof(word);
        continue;
      }
    }
    const Utf8Unit unit = next_unit(bytes.substr(pos));
    if (unit.kind != Utf8Kind::kValid) break;
    pos += static_cast<size_t>(unit.num_bytes);
  }
  return pos;
}

// Copies well-formed stretches whole and replaces one ill-formed sequence after each.
size_t append_repaired(std::string_view bytes, bool hold_back, std::string& out) {
  size_t pos = 0;
  while (true) {
    const size_t valid = valid_prefix(bytes.substr(pos));
    out.append(bytes.substr(pos, valid));
    pos += valid;
    if (pos == bytes.size()) return pos;
    const Utf8Unit unit = next_unit(bytes.substr(pos));
    if (unit.kind == Utf8Kind::kIncomplete && hold_back) return pos;
    out.append(kReplacementUtf8);
    pos += static_cast<size_t>(unit.num_bytes);
  }
}

}  // namespace sluice::unicode
