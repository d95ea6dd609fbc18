// Lexes text and tags alternately. Source: jinja2's lexer.py, with trim_blocks and lstrip_blocks.
#include "tokenizer/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sluice {
namespace {

using Kind = JinjaToken::Kind;

// jinja2 accepts more white space; any other character of it gives a kInvalid token.
constexpr std::string_view kSpaces = " \t\n\r\v\f";

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Printable ASCII without words.
bool is_punctuation(char c) { return c > ' ' && c < '\x7F' && !is_word(c); }

// The source with \n for each of \r\n and \r, without its last line end, as jinja2 reads it.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    text.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (text.ends_with('\n')) text.pop_back();  // jinja2 drops the last one
  return text;
}

// One pass over the source; pos_ is the next byte to lex.
class Lexer {
 public:
  explicit Lexer(std::string_view source) { program_.source = with_plain_line_ends(source); }

  JinjaProgram run() {
    while (pos_ < text().size() && !failed_) {
      const size_t open = find_tag();
      add_text(open);
      pos_ = open;
      if (pos_ < text().size()) lex_tag();
    }
    return std::move(program_);
  }

 private:
  std::string_view text() const { return program_.source; }
  std::string_view rest() const { return text().substr(pos_); }

  void add(Kind kind, std::string value, size_t offset) {
    program_.tokens.push_back({kind, std::move(value), offset});
  }

  // Ends the list with a kInvalid token at `offset`.
  void give_up(size_t offset) {
    add(Kind::kInvalid, {}, offset);
    failed_ = true;
  }

  // The position of the next {{, {% or {#, or the end.
  size_t find_tag() const {
    for (size_t at = text().find('{', pos_); at != text().npos; at = text().find('{', at + 1)) {
      const std::string_view next = text().substr(at + 1, 1);
      if (next == "{" || next == "%" || next == "#") return at;
    }
    return text().size();
  }

  // Adds the text up to the tag at `open`. "{%-" removes all white space before it; lstrip_blocks
  // removes blanks between the start of a line and a {% or {# tag.
  void add_text(size_t open) {
    std::string_view piece = text().substr(pos_, open - pos_);
    const std::string_view tag = text().substr(open, 3);
    if (tag.ends_with('-') && tag.size() == 3) {
      piece = piece.substr(0, piece.find_last_not_of(kSpaces) + 1);
    } else if (!tag.empty() && !tag.starts_with("{{")) {
      const size_t line = piece.rfind('\n') + 1;  // 0 when there is none
      const bool starts_line = line > 0 || line_starting_;
      if (starts_line && piece.find_first_not_of(kSpaces, line) == piece.npos) {
        piece = piece.substr(0, line);
      }
    }
    if (!piece.empty()) add(Kind::kText, std::string(piece), pos_);
  }

  // Lexes one tag, with its delimiters. "+" signs, which switch trimming off, are not handled.
  void lex_tag() {
    const size_t open = pos_;
    const std::string opening(rest().substr(0, 2));
    pos_ += 2;
    if (rest().starts_with('+')) return give_up(open);
    if (rest().starts_with('-')) ++pos_;
    if (opening == "{#") return skip_comment(open);
    add(Kind::kBegin, opening, open);
    const std::string closing = opening == "{{" ? "}}" : "%}";
    while (!failed_) {
      pos_ = std::min(text().find_first_not_of(kSpaces, pos_), text().size());
      if (pos_ == text().size()) return give_up(open);
      // "-}}" and "-%}" remove the white space after the tag.
      const bool strips = rest().starts_with("-" + closing);
      if (!strips && !rest().starts_with(closing)) {
        lex_expression_token();
        continue;
      }
      add(Kind::kEnd, closing, pos_);
      pos_ += closing.size() + (strips ? 1 : 0);
      return after_tag(strips, opening == "{%");
    }
  }

  // Skips {# ... #}; it affects the white space around it as a block does.
  void skip_comment(size_t open) {
    const size_t close = text().find("#}", pos_);
    if (close == text().npos) return give_up(open);
    const char sign = close > pos_ ? text()[close - 1] : ' ';
    if (sign == '+') return give_up(open);
    pos_ = close + 2;
    after_tag(sign == '-', true);
  }

  // Skips white space after a tag: all of it after "-%}", one line end after a block or comment
  // (trim_blocks).
  void after_tag(bool strips, bool takes_line_end) {
    if (strips) {
      pos_ = std::min(text().find_first_not_of(kSpaces, pos_), text().size());
    } else if (takes_line_end && rest().starts_with('\n')) {
      ++pos_;
    }
    line_starting_ = text()[pos_ - 1] == '\n';
  }

  // One token inside a tag: a string, a word or number, or an operator of one or two characters.
  void lex_expression_token() {
    const char c = rest()[0];
    if (c == '\'' || c == '"') return lex_string(c);
    const size_t begin = pos_;
    if (is_word(c)) {
      while (pos_ < text().size() && is_word(text()[pos_])) ++pos_;
      return add(Kind::kWord, std::string(text().substr(begin, pos_ - begin)), begin);
    }
    if (!is_punctuation(c)) return give_up(begin);
    constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "//", "**"};
    const std::string_view pair = rest().substr(0, 2);
    pos_ += std::find(kPairs.begin(), kPairs.end(), pair) != kPairs.end() ? 2 : 1;
    add(Kind::kOperator, std::string(text().substr(begin, pos_ - begin)), begin);
  }

  // A literal with its escapes resolved. Unknown escapes give kInvalid.
  void lex_string(char quote) {
    const size_t begin = pos_++;
    std::string value;
    for (; pos_ < text().size() && text()[pos_] != quote; ++pos_) {
      char c = text()[pos_];
      if (c == '\\') {
        // The escapes that occur in chat templates.
        constexpr std::string_view kEscapes = "ntr\\'\"", kMeanings = "\n\t\r\\'\"";
        const size_t which = ++pos_ < text().size() ? kEscapes.find(text()[pos_]) : kEscapes.npos;
        if (which == kEscapes.npos) return give_up(begin);
        c = kMeanings[which];
      }
      value.push_back(c);
    }
    if (pos_ == text().size()) return give_up(begin);
    ++pos_;
    add(Kind::kString, std::move(value), begin);
  }

  JinjaProgram program_;
  size_t pos_ = 0;
  bool line_starting_ = true;  // whether the byte before pos_ was a line end, skipped or not
  bool failed_ = false;
};

// Whether a token has this kind and value.
bool is(const JinjaToken& token, Kind kind, std::string_view value) {
  return token.kind == kind && token.value == value;
}

// Replaces x['role'] by x.role, and the same for 'content'. A message has no attributes of these
// names, so both forms give the same value.
void unify_members(std::vector<JinjaToken>& tokens) {
  for (size_t i = 1; i + 2 < tokens.size(); ++i) {
    const bool has_owner =
        tokens[i - 1].kind == Kind::kWord || is(tokens[i - 1], Kind::kOperator, "]");
    const std::string& key = tokens[i + 1].value;
    if (!has_owner || !is(tokens[i], Kind::kOperator, "[") || tokens[i + 1].kind != Kind::kString ||
        (key != "role" && key != "content") || !is(tokens[i + 2], Kind::kOperator, "]")) {
      continue;
    }
    tokens[i].value.assign(1, '.');  // = "." makes GCC 12 warn of an overlap at -O2
    // [ becomes ".", the string becomes a name, and ] is removed.
    tokens[i + 1].kind = Kind::kWord;
    tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(i) + 2);
  }
}

// Replaces {{ a + 'x' + 'y' + b }} by {{ a + 'xy' + b }}, if no operator before or after the two
// literals binds tighter than +.
void join_literals(std::vector<JinjaToken>& tokens) {
  const auto op = [&](size_t i, std::string_view v) { return is(tokens[i], Kind::kOperator, v); };
  const auto starts = [&](size_t i) {
    return op(i, "+") || op(i, "(") || is(tokens[i], Kind::kBegin, "{{");
  };
  const auto ends = [&](size_t i) {
    return op(i, "+") || op(i, ")") || is(tokens[i], Kind::kEnd, "}}");
  };
  for (size_t i = 1; i + 3 < tokens.size();) {
    const bool joins = starts(i - 1) && tokens[i].kind == Kind::kString && op(i + 1, "+") &&
                       tokens[i + 2].kind == Kind::kString && ends(i + 3);
    if (!joins) {
      ++i;
      continue;
    }
    tokens[i].value += tokens[i + 2].value;
    tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(i) + 1,
                 tokens.begin() + static_cast<ptrdiff_t>(i) + 3);
  }
}

}  // namespace

JinjaProgram lex_jinja(std::string_view source) {
  JinjaProgram program = Lexer(source).run();
  unify_members(program.tokens);
  join_literals(program.tokens);
  return program;
}

}  // namespace sluice
