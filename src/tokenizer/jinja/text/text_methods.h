// Python's string methods on MarkedText: every byte that is copied keeps its mark.
//
// Used by methods.cc and the filters. Positions are bytes unless named otherwise. Letters change
// case one by one: a letter whose other case has two letters (the German sharp s) stays as it is.
// Thread rule: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

enum class Side { kLeft, kRight, kBoth };
// strip(): removes white space, or the characters of `characters`.
MarkedText strip(const MarkedText& text, Side side, const MarkedText* characters);

// split(): at white space without a separator; `limit` < 0 for no limit.
// Errors: kInvalidArgument for an empty separator.
std::vector<MarkedText> split(Run& run, const MarkedText& text, const MarkedText* separator,
                              int64_t limit);
std::vector<MarkedText> rsplit(Run& run, const MarkedText& text, const MarkedText* separator,
                               int64_t limit);
std::vector<MarkedText> split_lines(Run& run, const MarkedText& text, bool keep_ends);

// replace(): the first `limit` occurrences, all if it is negative.
MarkedText replace(Run& run, const MarkedText& text, const MarkedText& from, const MarkedText& to,
                   int64_t limit);

enum class Case { kUpper, kLower, kTitle, kCapital, kJinjaTitle };
// upper(), lower(), title(), capitalize(), and the filter title.
MarkedText change_case(Run& run, const MarkedText& text, Case how);

// The number of characters, and the byte where one begins. REQUIRES: index <= num_characters.
int64_t num_characters(std::string_view text);
size_t byte_of_character(std::string_view text, int64_t index);

// The items with `separator` between them.
MarkedText join(Run& run, const std::vector<Value>& items, const MarkedText& separator);

// The characters in reverse order.
MarkedText reversed(Run& run, const MarkedText& text);

}  // namespace sluice::jinja
