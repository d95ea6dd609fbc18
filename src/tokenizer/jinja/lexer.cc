// One pass over the source. Source: jinja2's lexer.py.
#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "tokenizer/unicode.h"

namespace sluice::jinja {
namespace {

using TokenKind = Token::Kind;

constexpr std::string_view kSpaces = " \t\n\r\v\f";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

// The source with \n for each of \r\n and \r, and without its last line end.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    text.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

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

// The text between the quotes of a literal, with Python's escapes resolved; a backslash before any
// other character stays. Errors: kUnsupported for \N{...} and ill-formed \x, \u and \U.
// Source: Python's codec unicode-escape, which jinja2 uses.
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

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(with_plain_line_ends(source)) {
    const size_t valid = unicode::valid_prefix(text_);
    if (valid == text_.size()) return;
    skip_to(valid);
    refuse(line_, "the text is not UTF-8");
  }

  std::vector<Token> run() {
    while (pos_ < text_.size()) {
      const size_t open = find_tag();
      add_data(open, sign_at(open + 2), !rest(open).starts_with("{{"));
      skip_to(open);
      if (pos_ < text_.size()) lex_tag();
    }
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  std::string_view rest(size_t at) const {
    return std::string_view(text_).substr(std::min(at, text_.size()));
  }
  std::string_view rest() const { return rest(pos_); }

  // '-' or '+', the white space control of a tag; ' ' for none.
  char sign_at(size_t at) const {
    const char c = at < text_.size() ? text_[at] : ' ';
    return c == '-' || c == '+' ? c : ' ';
  }

  // Moves to `to` and counts lines.
  void skip_to(size_t to) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(pos_),
                                         text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    pos_ = to;
  }
  void skip_spaces() { skip_to(std::min(text_.find_first_not_of(kSpaces, pos_), text_.size())); }

  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  // The position of the next tag, or the end.
  size_t find_tag() const {
    for (size_t at = text_.find('{', pos_); at != text_.npos; at = text_.find('{', at + 1)) {
      const std::string_view next = rest(at + 1).substr(0, 1);
      if (next == "{" || next == "%" || next == "#") return at;
    }
    return text_.size();
  }

  // Adds the text up to the tag at `open`, whose sign '-' removes all white space before it. Before
  // a block or comment (`strips_line`) lstrip_blocks removes blanks at the start of a line.
  void add_data(size_t open, char sign, bool strips_line) {
    std::string_view piece = rest().substr(0, open - pos_);
    if (open < text_.size() && sign == '-') {
      piece = piece.substr(0, piece.find_last_not_of(kSpaces) + 1);
    } else if (open < text_.size() && sign == ' ' && strips_line) {
      const size_t line = piece.rfind('\n') + 1;  // 0 when there is none
      const bool starts_line = line > 0 || pos_ == 0 || text_[pos_ - 1] == '\n';
      if (starts_line && piece.find_first_not_of(kSpaces, line) == piece.npos) {
        piece = piece.substr(0, line);
      }
    }
    if (!piece.empty()) add(TokenKind::kData, std::string(piece));
  }

  void lex_tag() {
    if (rest().starts_with("{#")) return skip_comment();
    if (lex_raw()) return;
    const bool block = rest().starts_with("{%");
    add(block ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, {});
    skip_to(pos_ + 2);
    if (sign_at(pos_) != ' ' && (block || text_[pos_] == '-')) skip_to(pos_ + 1);
    brackets_.clear();
    while (!lex_tag_end(block)) lex_token();
  }

  // Skips white space, and the end of the tag if it is here.
  bool lex_tag_end(bool block) {
    skip_spaces();
    if (pos_ == text_.size()) refuse(line_, "a tag is not closed");
    const std::string_view close = block ? "%}" : "}}";
    if (!brackets_.empty()) return false;
    const char sign = sign_at(pos_);
    const size_t signs = sign == '-' || (sign == '+' && block) ? 1 : 0;
    if (!rest(pos_ + signs).starts_with(close)) return false;
    add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, {});
    skip_to(pos_ + signs + 2);
    after_tag(signs > 0 ? sign : ' ', block);
    return true;
  }

  // White space after a tag: all of it after '-', else one line end after blocks (trim_blocks).
  void after_tag(char sign, bool block) {
    if (sign == '-') {
      skip_spaces();
    } else if (sign == ' ' && block && rest().starts_with('\n')) {
      skip_to(pos_ + 1);
    }
  }

  void skip_comment() {
    const size_t close = text_.find("#}", pos_ + 2);
    if (close == text_.npos) refuse(line_, "a comment is not closed");
    const char sign = close > pos_ + 2 ? sign_at(close - 1) : ' ';
    skip_to(close + 2);
    after_tag(sign, true);
  }

  // The length of {%- word -%} at `at`, or 0; sets the signs of both ends.
  size_t match_word_tag(size_t at, std::string_view word, char& open, char& close) const {
    if (!rest(at).starts_with("{%")) return 0;
    open = sign_at(at + 2);
    const auto skip = [this](size_t p) {
      return std::min(text_.find_first_not_of(kSpaces, p), text_.size());
    };
    size_t end = skip(at + (open == ' ' ? 2 : 3));
    if (!rest(end).starts_with(word)) return 0;
    end = skip(end + word.size());
    close = sign_at(end);
    if (close != ' ') ++end;
    return rest(end).starts_with("%}") ? end + 2 - at : 0;
  }

  // {% raw %}: text up to {% endraw %}. Returns whether there is one here.
  bool lex_raw() {
    char open = ' ', close = ' ';
    const size_t size = match_word_tag(pos_, "raw", open, close);
    if (size == 0 || close == '+') return false;
    skip_to(pos_ + size);
    after_tag(close, false);  // trim_blocks keeps the line end after {% raw %}
    size_t end = text_.find("{%", pos_);
    size_t end_size = 0;
    while (end != text_.npos && (end_size = match_word_tag(end, "endraw", open, close)) == 0) {
      end = text_.find("{%", end + 2);
    }
    if (end == text_.npos) refuse(line_, "{% raw %} is not closed");
    add_data(end, open, true);
    skip_to(end + end_size);
    after_tag(close, true);
    return true;
  }

  // One token inside a tag.
  void lex_token() {
    const char c = text_[pos_];
    if (c == '\'' || c == '"') return lex_string(c);
    if (is_digit(c)) return lex_number();
    if (!is_word(c)) return lex_operator();
    size_t end = pos_;
    while (end < text_.size() && is_word(text_[end])) ++end;
    add(TokenKind::kName, std::string(rest().substr(0, end - pos_)));
    skip_to(end);
  }

  void lex_string(char quote) {
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) refuse(line_, "a text is not closed");
    add(TokenKind::kString, unescape_literal(rest().substr(1, end - pos_ - 1), line_));
    skip_to(end + 1);
  }

  // Digits with single _ between them, a fraction and an exponent.
  void lex_number() {
    std::string digits;
    size_t at = pos_;
    const auto take_digits = [&] {
      while (at < text_.size() && (is_digit(text_[at]) || text_[at] == '_')) {
        if (text_[at] != '_') digits += text_[at];
        ++at;
      }
    };
    const auto digit_at = [&](size_t i) { return i < text_.size() && is_digit(text_[i]); };
    take_digits();
    bool is_float = false;
    const bool after_dot = pos_ > 0 && text_[pos_ - 1] == '.';  // x.0 is an item of x
    if (!after_dot && rest(at).starts_with('.') && digit_at(at + 1)) {
      is_float = true;
      digits += text_[at++];
      take_digits();
    }
    if (!after_dot && at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
      const size_t sign = at + 1 < text_.size() && (text_[at + 1] == '-' || text_[at + 1] == '+');
      if (digit_at(at + 1 + sign)) {
        is_float = true;
        digits += text_.substr(at, 1 + sign);
        at += 1 + sign;
        take_digits();
      }
    }
    if (at < text_.size() && is_word(text_[at])) refuse(line_, "a number has letters in it");
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits));
    skip_to(at);
  }

  void lex_operator() {
    constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "//", "**"};
    constexpr std::string_view kSingles = "+-/*%~[](){}><=.:|,";
    const std::string_view pair = rest().substr(0, 2);
    const bool is_pair = std::find(kPairs.begin(), kPairs.end(), pair) != kPairs.end();
    if (!is_pair && kSingles.find(text_[pos_]) == kSingles.npos) {
      refuse(line_, fmt::format("\"{}\" has no meaning in a tag", printable(rest().substr(0, 8))));
    }
    balance(text_[pos_]);
    add(TokenKind::kOperator, std::string(pair.substr(0, is_pair ? 2 : 1)));
    skip_to(pos_ + (is_pair ? 2 : 1));
  }

  // Brackets, so that }} inside of them does not end the tag.
  void balance(char c) {
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (kOpen.find(c) != kOpen.npos) brackets_.push_back(c);
    const size_t which = kClose.find(c);
    if (which == kClose.npos) return;
    if (brackets_.empty() || brackets_.back() != kOpen[which]) {
      refuse(line_, fmt::format("unexpected \"{}\"", c));
    }
    brackets_.pop_back();
  }

  std::string text_;
  size_t pos_ = 0;
  int line_ = 1;
  std::string brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex(std::string_view source) { return Lexer(source).run(); }

void refuse(int line, std::string_view what) {
  fail(ErrorCode::kUnsupported, "chat template, line {}: {}", line, what);
}

}  // namespace sluice::jinja
