// A Jinja template as a list of tokens, so that programs can be compared whatever their layout.
//
// Used by chat_format.cc, which knows a few whole programs; nothing here executes anything. Follows
// the lexer of jinja2 with trim_blocks and lstrip_blocks, as transformers sets them. What it is not
// sure of becomes a kInvalid token, which no known program has. Thread rule: a free function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct JinjaToken {
  enum class Kind {
    kText,      // what stands outside of tags and is written as it is
    kBegin,     // {{ or {%
    kEnd,       // }} or %}
    kWord,      // a name, keyword or number
    kString,    // a literal; value is what it means, not how it is spelled
    kOperator,  // == and the like, or one punctuation mark
    kInvalid    // the rest of a source that this lexer cannot follow
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
// White space in tags, trimmed white space around them, comments, and how a literal is quoted and
// escaped leave no trace: a backslash-n and a real line end in a literal are the same character.
// x['role'] and x['content'] become x.role and x.content; neighbours in a sum of literals are one.
JinjaProgram lex_jinja(std::string_view source);

}  // namespace sluice
