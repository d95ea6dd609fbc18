// Splits a Jinja template into tokens, with white space control done.
//
// Used by the parser. Follows jinja2's lexer with trim_blocks and lstrip_blocks, as transformers
// sets them. (jinja_lexer.h compares templates with known ones and parses less.) Thread rule: a
// free function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

struct Token {
  enum class Kind {
    kData,           // text outside of tags, written unchanged
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kName,
    kString,  // its text without quotes and escapes
    kInteger,
    kFloat,
    kOperator,
    kEnd  // of the template
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;

  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool is_operator(std::string_view op) const { return kind == Kind::kOperator && text == op; }
};

// The last token is kEnd. Errors: kUnsupported that names the line, for tags and texts that are not
// closed, characters that no tag may have, unbalanced brackets and ill-formed UTF-8.
std::vector<Token> lex(std::string_view source);

// Throws kUnsupported "chat template, line N: what".
[[noreturn]] void refuse(int line, std::string_view what);

}  // namespace sluice::jinja
