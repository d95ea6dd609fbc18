// Splits a Jinja template into tokens, so that templates can be compared independently of layout.
//
// Used by chat_format.cc, which compares with known templates; nothing is executed. Follows the
// lexer of jinja2 with trim_blocks and lstrip_blocks, as transformers sets them. Source text that
// it does not handle becomes a kInvalid token, which no known template has. Thread rule: a free
// function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct JinjaToken {
  enum class Kind {
    kText,      // text outside of tags, which is written unchanged
    kBegin,     // {{ or {%
    kEnd,       // }} or %}
    kWord,      // a name, keyword or number
    kString,    // a literal; value is its text without quotes and escapes
    kOperator,  // == and the like, or one punctuation mark
    kInvalid    // the rest of a source that this lexer does not handle
  };
  Kind kind = Kind::kInvalid;
  std::string value;
  size_t offset = 0;  // of its first byte in the program's source
};

struct JinjaProgram {
  std::string source;  // with \n for every line end
  std::vector<JinjaToken> tokens;
};

// Two programs of equal kinds and values write the same text for a conversation.
//
// White space in tags, trimmed white space around them, comments, and the quotes and escapes of
// literals do not change the tokens: \n and a line end in a literal are the same character.
// x['role'] and x['content'] become x.role and x.content; adjacent literals of a sum become one.
JinjaProgram lex_jinja(std::string_view source);

}  // namespace sluice
