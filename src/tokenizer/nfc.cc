// Decomposes, orders and composes the segments that NFC may change; other text is copied.
#include "tokenizer/nfc.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include <utf8proc.h>

#include "core/error.h"
#include "tokenizer/unicode.h"

namespace sluice::unicode {
namespace {

// Hangul syllables compose by arithmetic.
// Source: The Unicode Standard, section 3.12.
constexpr char32_t kHangulSBase = 0xAC00, kHangulLBase = 0x1100, kHangulVBase = 0x1161,
                   kHangulTBase = 0x11A7;
constexpr char32_t kHangulLCount = 19, kHangulVCount = 21, kHangulTCount = 28,
                   kHangulSCount = kHangulLCount * kHangulVCount * kHangulTCount;

// A character with its canonical combining class; 0 is a starter.
struct Mark {
  char32_t c;
  int combining_class;
};

struct YoungRange {
  char32_t first, last;
};

// Characters added after Unicode 9.0 that combine or decompose. The reference tokenizers normalize
// by Unicode 9.0, where these were unassigned and did not change; treating them as inert here gives
// the same ids. The last four ranges are whole scripts of Unicode 16.0, for a utf8proc newer than
// Debian's (15.0).
constexpr YoungRange kYoung[] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x105C0, 0x105FF}, {0x11380, 0x113FF}, {0x16100, 0x1613F},
    {0x16D40, 0x16D7F}};

// Whether `c` is in kYoung.
bool is_young(char32_t c) {
  return c >= kYoung[0].first &&
         std::any_of(std::begin(kYoung), std::end(kYoung),
                     [c](const YoungRange& range) { return c >= range.first && c <= range.last; });
}

// The class by Unicode 9.0: 0 for characters that are younger.
int combining_class(char32_t c) {
  const int value = utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
  return value != 0 && is_young(c) ? 0 : value;
}

// Whether `c` has a canonical decomposition of its own (Hangul is computed instead).
bool has_decomposition(char32_t c) {
  const auto* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0 && !is_young(c);
}

// The key of a pair in the table of compositions.
uint64_t pair_key(char32_t first, char32_t second) {
  return static_cast<uint64_t>(first) << 32 | second;
}

// The full canonical decomposition of `c`, appended to `out`.
void decompose(char32_t c, std::vector<Mark>& out) {
  if (is_young(c)) {
    // Unassigned in Unicode 9.0: it decomposes to itself.
    out.push_back({c, 0});
    return;
  }
  // No full canonical decomposition has more than 4 characters.
  utf8proc_int32_t buffer[8];
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), buffer, 8,
                                             UTF8PROC_DECOMPOSE, &boundary);
  SLUICE_CHECK(count >= 1 && count <= 8, "U+{:04X} has {} parts", static_cast<uint32_t>(c), count);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const char32_t part = static_cast<char32_t>(buffer[i]);
    out.push_back({part, combining_class(part)});
  }
}

// The primary composite of two characters by utf8proc, or 0.
char32_t utf8proc_composite(char32_t first, char32_t second) {
  utf8proc_int32_t buffer[2] = {static_cast<utf8proc_int32_t>(first),
                                static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto count = utf8proc_normalize_utf32(buffer, 2, options);
  return count == 1 ? static_cast<char32_t>(buffer[0]) : 0;
}

// Pairs of characters and their primary composites. For a composite with full decomposition p1..pn
// the pair is (composition of p1..pn-1, pn). Composites outside Hangul are in a table.
class Compositions {
 public:
  static const Compositions& get() {
    static const Compositions compositions;
    return compositions;
  }

  // The composite of two characters, or 0.
  char32_t find(char32_t first, char32_t second) const {
    if (first >= kHangulLBase && first < kHangulLBase + kHangulLCount && second >= kHangulVBase &&
        second < kHangulVBase + kHangulVCount) {
      const char32_t syllable = (first - kHangulLBase) * kHangulVCount + second - kHangulVBase;
      return kHangulSBase + syllable * kHangulTCount;
    }
    if (first >= kHangulSBase && first < kHangulSBase + kHangulSCount &&
        (first - kHangulSBase) % kHangulTCount == 0 && second > kHangulTBase &&
        second < kHangulTBase + kHangulTCount) {
      return first + second - kHangulTBase;
    }
    const auto it = pairs_.find(pair_key(first, second));
    return it == pairs_.end() ? 0 : it->second;
  }

  // pair_key -> composite, without Hangul.
  const std::unordered_map<uint64_t, char32_t>& pairs() const { return pairs_; }

 private:
  Compositions() {
    std::vector<Mark> parts;
    // U+00C0 is the first character with a decomposition; planes 3 and up have no composites.
    for (char32_t c = 0xC0; c < 0x30000; ++c) {
      if (c >= kHangulSBase && c < kHangulSBase + kHangulSCount) continue;
      if (!has_decomposition(c)) continue;
      parts.clear();
      decompose(c, parts);
      if (parts.size() >= 2) add(c, parts);
    }
  }

  // Adds the pair of a composite, unless it is excluded from composition (utf8proc then does not
  // compose the pair).
  void add(char32_t composite, const std::vector<Mark>& parts) {
    char32_t first = parts[0].c;
    for (size_t i = 1; i + 1 < parts.size() && first != 0; ++i) {
      first = utf8proc_composite(first, parts[i].c);
    }
    const char32_t second = parts.back().c;
    if (first != 0 && utf8proc_composite(first, second) == composite) {
      pairs_.emplace(pair_key(first, second), composite);
    }
  }

  std::unordered_map<uint64_t, char32_t> pairs_;
};

// Sorts every run of non-starters by combining class, keeping the order of equals.
void order_marks(std::vector<Mark>& marks) {
  const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
  auto begin = marks.begin();
  while (begin != marks.end()) {
    begin = std::find_if_not(begin, marks.end(), is_starter);
    const auto end = std::find_if(begin, marks.end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

// Composes ordered marks in place. Source: The Unicode Standard, section 3.11, D117 (canonical
// composition algorithm).
void compose(std::vector<Mark>& marks) {
  const Compositions& compositions = Compositions::get();
  size_t kept = 0;
  size_t starter = SIZE_MAX;  // the last starter that was kept
  for (const Mark mark : marks) {
    // A mark is blocked if the last one kept since the starter has at least its class. Classes are
    // in ascending order, so the last one kept has the highest.
    const bool adjacent = starter != SIZE_MAX && kept == starter + 1;
    const bool reachable =
        starter != SIZE_MAX && (adjacent || marks[kept - 1].combining_class < mark.combining_class);
    const char32_t composite = reachable ? compositions.find(marks[starter].c, mark.c) : 0;
    if (composite != 0) {
      marks[starter].c = composite;
      continue;
    }
    if (mark.combining_class == 0) starter = kept;
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

// Appends the NFC form of one segment. `marks` is scratch, reused between segments.
void append_segment(std::string_view segment, std::vector<Mark>& marks, std::string& out) {
  marks.clear();
  for (size_t pos = 0; pos < segment.size();) {
    const Decoded decoded = decode(segment.data() + pos);
    decompose(decoded.c, marks);
    pos += static_cast<size_t>(decoded.num_bytes);
  }
  order_marks(marks);
  compose(marks);
  for (const Mark& mark : marks) append(mark.c, out);
}

}  // namespace

void append_nfc(std::string_view text, std::string& out) {
  const PropertyTable& table = PropertyTable::get();
  std::vector<Mark> marks;
  size_t copied = 0;   // text before this is in `out`
  size_t segment = 0;  // start of the last fixed character seen
  for (size_t pos = 0; pos < text.size();) {
    const Decoded decoded = decode(text.data() + pos);
    if (table[decoded.c] & kNfcFixed) {
      segment = pos;
      pos += static_cast<size_t>(decoded.num_bytes);
      continue;
    }
    // The segment runs from the fixed character before `pos` to the next fixed one; characters
    // outside cannot interact with it.
    out.append(text.substr(copied, segment - copied));
    size_t end = pos;
    while (end < text.size()) {
      const Decoded next = decode(text.data() + end);
      if (table[next.c] & kNfcFixed) break;
      end += static_cast<size_t>(next.num_bytes);
    }
    append_segment(text.substr(segment, end - segment), marks, out);
    copied = segment = pos = end;
  }
  out.append(text.substr(copied));
}

void mark_nfc_fixed(std::vector<uint8_t>& properties) {
  for (auto& bits : properties) bits |= kNfcFixed;
  const auto clear = [&properties](char32_t c) {
    properties[c] &= static_cast<uint8_t>(~kNfcFixed);
  };
  // Characters that may compose with the character before them.
  for (const auto& [pair, composite] : Compositions::get().pairs()) {
    clear(static_cast<char32_t>(pair & 0xFFFFFFFF));
  }
  for (char32_t i = 0; i < kHangulVCount; ++i) clear(kHangulVBase + i);
  for (char32_t i = 1; i < kHangulTCount; ++i) clear(kHangulTBase + i);
  // Characters that are reordered, and those whose decomposition does not compose back.
  std::vector<Mark> marks;
  for (char32_t c = 0xC0; c < properties.size(); ++c) {
    if (combining_class(c) != 0) clear(c);
    if (!has_decomposition(c)) continue;
    marks.clear();
    decompose(c, marks);
    order_marks(marks);
    compose(marks);
    if (marks.size() != 1 || marks[0].c != c) clear(c);
  }
}

}  // namespace sluice::unicode
