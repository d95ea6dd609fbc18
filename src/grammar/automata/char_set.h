// CharSet: a set of Unicode characters, as ranges.
//
// Used by automata (automaton.h) and by what writes them as rules of a grammar. Thread rule: a
// value.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct CharRange {
  uint32_t first = 0;
  uint32_t last = 0;  // included

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside <=> for a pointer
  auto operator<=>(const CharRange&) const = default;
};

class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CharRange> ranges);
  // Every character that UTF-8 can encode: surrogates are none.
  static const CharSet& all();

  void add(CharRange range);
  bool empty() const { return ranges_.empty(); }
  // Sorted, with a gap after each.
  const std::vector<CharRange>& ranges() const { return ranges_; }

  CharSet united(const CharSet& other) const;
  CharSet intersected(const CharSet& other) const;
  CharSet without(const CharSet& other) const;

 private:
  std::vector<CharRange> ranges_;
};

// The characters of valid UTF-8.
std::u32string characters_of(std::string_view utf8);
// UTF-8 of one character.
std::string utf8_of(uint32_t character);

}  // namespace sluice
