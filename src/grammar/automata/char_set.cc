// Sets as sorted lists of ranges.
#include "grammar/automata/char_set.h"

#include <algorithm>

namespace sluice {

CharSet::CharSet(std::initializer_list<CharRange> ranges) {
  for (const CharRange range : ranges) add(range);
}

const CharSet& CharSet::all() {
  static const CharSet set{{0, 0xD7FF}, {0xE000, 0x10FFFF}};
  return set;
}

// What touches the new range becomes a part of it.
void CharSet::add(CharRange range) {
  const auto ends_before = [](const CharRange& r, uint32_t first) { return r.last + 1 < first; };
  const auto begin = std::lower_bound(ranges_.begin(), ranges_.end(), range.first, ends_before);
  auto end = begin;
  for (; end != ranges_.end() && end->first <= range.last + 1; ++end) {
    range = {std::min(range.first, end->first), std::max(range.last, end->last)};
  }
  ranges_.insert(ranges_.erase(begin, end), range);
}

CharSet CharSet::united(const CharSet& other) const {
  CharSet result = *this;
  for (const CharRange range : other.ranges_) result.add(range);
  return result;
}

// Both lists at once, from the smallest character to the largest.
CharSet CharSet::intersected(const CharSet& other) const {
  CharSet result;
  auto a = ranges_.begin();
  auto b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    const CharRange both{std::max(a->first, b->first), std::min(a->last, b->last)};
    if (both.first <= both.last) result.ranges_.push_back(both);
    if (a->last < b->last) {
      ++a;
    } else {
      ++b;
    }
  }
  return result;
}

// Cuts the ranges of the other set out of each of its own.
CharSet CharSet::without(const CharSet& other) const {
  CharSet result;
  auto b = other.ranges_.begin();
  for (CharRange a : ranges_) {
    while (b != other.ranges_.end() && b->last < a.first) ++b;
    auto hole = b;
    for (; hole != other.ranges_.end() && hole->first <= a.last; ++hole) {
      if (hole->first > a.first) result.ranges_.push_back({a.first, hole->first - 1});
      a.first = hole->last + 1;
      if (a.first > a.last) break;
    }
    if (a.first <= a.last) result.ranges_.push_back(a);
  }
  return result;
}

// Callers have seen to valid UTF-8, so a byte says how many belong to it.
std::u32string characters_of(std::string_view utf8) {
  std::u32string text;
  for (const char c : utf8) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) == 0x80) {
      text.back() = text.back() << 6 | (byte & 0x3Fu);
    } else {
      text += byte < 0x80   ? byte
              : byte < 0xE0 ? byte & 0x1Fu
              : byte < 0xF0 ? byte & 0xFu
                            : byte & 7u;
    }
  }
  return text;
}

std::string utf8_of(uint32_t c) {
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

}  // namespace sluice
