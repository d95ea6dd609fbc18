// Source: Python's codec unicode-escape, which jinja2 uses.
#include "tokenizer/jinja/string_literal.h"

#include <algorithm>
#include <charconv>

#include "tokenizer/jinja/lexer.h"
#include "tokenizer/unicode.h"

namespace sluice::jinja {
namespace {

// A character given by `size` digits of a base; returns how many bytes were read.
size_t append_coded(std::string_view digits, int base, size_t min_size, int line,
                    std::string& out) {
  uint32_t code = 0;
  const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
  const auto size = static_cast<size_t>(end.ptr - digits.data());
  if (size < min_size || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    refuse(line, "a literal has an escape that is not a character");
  }
  unicode::append(static_cast<char32_t>(code), out);
  return size;
}

// Appends the character of the escape after a backslash; returns its length in the source.
size_t append_escape(std::string_view escape, int line, std::string& out) {
  constexpr std::string_view kEscapes = "ntr\\'\"abfv", kMeanings = "\n\t\r\\'\"\a\b\f\v";
  const char c = escape[0];
  if (const size_t which = kEscapes.find(c); which != kEscapes.npos) {
    out += kMeanings[which];
    return 1;
  }
  if (c == '\n') return 1;  // the literal goes on in the next line
  if (c >= '0' && c <= '7') {
    size_t size = 1;
    while (size < std::min<size_t>(3, escape.size()) && escape[size] >= '0' &&
           escape[size] <= '7') {
      ++size;
    }
    return append_coded(escape.substr(0, size), 8, 1, line, out);
  }
  if (c == 'x') return 1 + append_coded(escape.substr(1, 2), 16, 2, line, out);
  if (c == 'u') return 1 + append_coded(escape.substr(1, 4), 16, 4, line, out);
  if (c == 'U') return 1 + append_coded(escape.substr(1, 8), 16, 8, line, out);
  if (c == 'N') refuse(line, "a literal has \\N, a character by its name; write \\u instead");
  out += '\\';
  return 0;
}

}  // namespace

std::string unescape_literal(std::string_view literal, int line) {
  std::string text;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      text += literal[i];
    } else {
      i += append_escape(literal.substr(i + 1), line, text);
    }
  }
  return text;
}

}  // namespace sluice::jinja
