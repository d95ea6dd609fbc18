// Reads the rules of a grammar in EBNF, as a network over bytes.
//
// The notation of GBNF and of what RuleWriter writes:
//
//   name ::= body            a rule; "root" is where a text begins
//   "text"  'text'           a text; \n \r \t \b \f \\ \" \' and \x41 \u0041 \U00000041 in it
//   [a-z_]  [^"]  .          one character: of a set, outside of it, any
//   name  ( ... )            another rule, a group
//   a b    a | b             one after the other, one of both
//   a*  a+  a?  a{2}  a{2,}  a{2,5}
//   # comment                to the end of the line
//
// A rule goes on until the next "name ::=". Used by grammar.cc. Thread rule: free function.
#pragma once

#include <string_view>

#include "grammar/walk/byte_net.h"

namespace sluice {

// The network, finished. Errors: kInvalidArgument with line and column for what is no rule, names
// without a rule, and those of ByteNet.
ByteNet read_rules(std::string_view text);

}  // namespace sluice
