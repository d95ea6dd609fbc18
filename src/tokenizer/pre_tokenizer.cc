// One matcher per regular expression; alternatives are tried in their order. Letters, numbers and
// spaces are disjoint, so greedy runs need no backtracking, except that a run of white space may
// give back its last character, which the run itself determines.
#include "tokenizer/pre_tokenizer.h"

namespace sluice {
namespace {

using unicode::kLetter;
using unicode::kMark;
using unicode::kNumber;
using unicode::kNumeric;
using unicode::kSpace;
using unicode::PropertyTable;

// A regular expression as tokenizer.json has it, letter for letter, and its matcher.
struct Pattern {
  std::string_view regex;
  SplitKind kind;
};

constexpr Pattern kPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitKind::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitKind::kQwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
     R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitKind::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
     R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitKind::kQwen35}};

// A position in the text with the character there and its properties; at the end `bits` is kEnd.
struct Cursor {
  static constexpr int kEnd = -1;

  Cursor(const PropertyTable& properties, const char* begin, const char* text_end)
      : table(&properties), at(begin), end(text_end) {
    load();
  }

  void advance() {
    at += num_bytes;
    load();
  }
  // REQUIRES: not at the end.
  Cursor next() const {
    Cursor copy = *this;
    copy.advance();
    return copy;
  }
  bool is(int wanted) const { return bits > 0 && (bits & wanted) != 0; }
  // Neither a space, a number nor one of `letters`, and not the end.
  bool is_other(int letters = kLetter) const {
    return bits >= 0 && (bits & (letters | kNumber | kSpace)) == 0;
  }
  bool is_newline() const { return c == '\r' || c == '\n'; }
  bool at_end() const { return bits == kEnd; }

  void skip_run(int wanted) {
    while (is(wanted)) advance();
  }
  void skip_others(int letters = kLetter) {
    while (is_other(letters)) advance();
  }
  void skip_newlines() {
    while (is_newline()) advance();
  }

  // `c`, `num_bytes` and `bits` describe the character at `at`.
  const PropertyTable* table;
  const char* at;
  const char* end;
  char32_t c = 0;
  int num_bytes = 0;
  int bits = kEnd;

 private:
  // Decodes the character at `at`.
  void load() {
    if (at == end) {
      c = 0, num_bytes = 0, bits = kEnd;
      return;
    }
    const unicode::Decoded decoded = unicode::decode(at);
    c = decoded.c;
    num_bytes = decoded.num_bytes;
    bits = (*table)[c];
  }
};

char32_t lower_ascii(char32_t c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; }

// Length in bytes of 's 't 're 've 'm 'll or 'd at `quote`, or 0. With `any_case`, letters compare
// by Unicode simple case folding, under which U+017F (long s) is an s.
int contraction_bytes(const Cursor& quote, bool any_case) {
  if (quote.c != '\'') return 0;
  const Cursor first = quote.next();
  char32_t a = first.c;
  if (any_case) a = a == 0x17F ? U's' : lower_ascii(a);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return quote.num_bytes + first.num_bytes;
  if (a != 'r' && a != 'v' && a != 'l') return 0;
  const Cursor second = first.next();
  const char32_t b = any_case ? lower_ascii(second.c) : second.c;
  return b == (a == 'l' ? U'l' : U'e') ? 3 : 0;
}

// \s+(?!\S)|\s+ : a run of white space, without its last character if a non-space follows and the
// run is longer than one.
const char* match_spaces(const Cursor& start) {
  Cursor cursor = start;
  const char* last = cursor.at;
  while (cursor.is(kSpace)) {
    last = cursor.at;
    cursor.advance();
  }
  const bool keep_all = cursor.at_end() || last == start.at;
  return keep_all ? cursor.at : last;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end of the run if there is one, else as above.
const char* match_lines_or_spaces(const Cursor& start) {
  Cursor cursor = start;
  const char* after_newline = nullptr;
  const char* last = cursor.at;
  while (cursor.is(kSpace)) {
    const bool newline = cursor.is_newline();
    last = cursor.at;
    cursor.advance();
    if (newline) after_newline = cursor.at;
  }
  if (after_newline) return after_newline;
  const bool keep_all = cursor.at_end() || last == start.at;
  return keep_all ? cursor.at : last;
}

// The expression of GPT-2 (kPatterns). Returns the end of the piece.
const char* match_gpt2(Cursor cursor) {
  if (const int bytes = contraction_bytes(cursor, false)) return cursor.at + bytes;
  const Cursor start = cursor;
  if (cursor.c == ' ') cursor.advance();
  if (cursor.is(kLetter)) {
    cursor.skip_run(kLetter);
  } else if (cursor.is(kNumber)) {
    cursor.skip_run(kNumber);
  } else if (cursor.is_other()) {
    cursor.skip_others();
  } else {
    return match_spaces(start);
  }
  return cursor.at;
}

// \p{N}{1,max_digits}
const char* match_digits(Cursor cursor, int max_digits) {
  for (int i = 0; i < max_digits && cursor.is(kNumber); ++i) cursor.advance();
  return cursor.at;
}

// The expressions of Qwen2, Llama 3 and Qwen3.5, which differ in the number of digits of one piece
// and in what counts as a letter.
const char* match_cl100k(Cursor cursor, int max_digits, int letters = kLetter) {
  if (const int bytes = contraction_bytes(cursor, true)) return cursor.at + bytes;
  if (cursor.is(kNumber)) return match_digits(cursor, max_digits);
  const Cursor start = cursor;
  // [^\r\n\p{L}\p{N}]?\p{L}+ : numbers were matched above, so any other character may lead. A mark
  // that leads nothing is given back and is the run itself.
  if (!cursor.is(kLetter) && !cursor.is_newline()) cursor.advance();
  if (!cursor.is(letters) && start.is(letters)) cursor = start;
  if (cursor.is(letters)) {
    cursor.skip_run(letters);
    return cursor.at;
  }
  cursor = start;
  if (cursor.c == ' ') cursor.advance();
  if (cursor.is_other(letters)) {
    cursor.skip_others(letters);
    cursor.skip_newlines();
    return cursor.at;
  }
  return match_lines_or_spaces(start);
}

// The "Digits" pre-tokenizer: one numeric character or a run of them, or the text up to the next.
const char* match_numeric(Cursor cursor, bool individual) {
  if (cursor.is(kNumeric)) {
    cursor.advance();
    while (!individual && cursor.is(kNumeric)) cursor.advance();
    return cursor.at;
  }
  while (!cursor.at_end() && !cursor.is(kNumeric)) cursor.advance();
  return cursor.at;
}

}  // namespace

std::optional<SplitKind> split_kind_of_regex(std::string_view regex) {
  for (const Pattern& pattern : kPatterns) {
    if (regex == pattern.regex) return pattern.kind;
  }
  return std::nullopt;
}

std::string_view regex_of_split_kind(SplitKind kind) {
  for (const Pattern& pattern : kPatterns) {
    if (kind == pattern.kind) return pattern.regex;
  }
  return {};
}

const char* PreTokenizer::match(SplitKind kind, const char* begin, const char* end) const {
  const Cursor cursor(*table_, begin, end);
  switch (kind) {
    case SplitKind::kGpt2:
      return match_gpt2(cursor);
    case SplitKind::kQwen2:
      return match_cl100k(cursor, 1);
    case SplitKind::kLlama3:
      return match_cl100k(cursor, 3);
    case SplitKind::kQwen35:
      return match_cl100k(cursor, 1, kLetter | kMark);
    case SplitKind::kIndividualDigits:
      return match_numeric(cursor, true);
    case SplitKind::kContiguousDigits:
      return match_numeric(cursor, false);
  }
  return end;
}

}  // namespace sluice
