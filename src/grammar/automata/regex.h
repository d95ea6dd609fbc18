// Regular expressions as automata: the part of ECMA 262's that describes regular languages.
//
// Alternatives, groups, classes, repetitions, and anchors wherever they stand; lazy repetitions
// mean the same as others. Look-aheads may begin an expression, after its ^ (look_ahead.h). \d and
// \w are ASCII, as there; `.` is everything but line ends. Thread rule: free functions.
#pragma once

#include <string_view>

#include "grammar/automata/automaton.h"

namespace sluice {

enum class RegexUse {
  kWhole,     // the whole text matches
  kAnywhere,  // some part of the text does, as `pattern` of JSON Schema
};

// The texts that `regex` describes. Errors: kInvalidArgument, naming what is not supported
// (other look-around, references, word borders, properties of Unicode, flags), what is wrong and
// where, and beyond kMaxAutomatonStates. REQUIRES: valid UTF-8.
Automaton of_regex(std::string_view regex, RegexUse use);

}  // namespace sluice
