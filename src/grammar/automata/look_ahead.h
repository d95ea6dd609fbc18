// Look-aheads at the beginning of a regular expression, as ^(?=.*\d)(?!admin).{8,}$ has them.
//
// Validators of passwords and decimals begin with them, also those that pydantic writes. There they
// say something of the whole text, so that automata can be combined for them; anywhere
// else they are refused. Thread rule: free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct LookAhead {
  std::string regex;  // how the text begins
  bool is_negative = false;
};

struct LookAheads {
  std::vector<LookAhead> all;
  std::string rest;  // the expression without them
};

// Empty if it has none that begin it, or if alternatives or further anchors make them say less.
std::optional<LookAheads> split_look_aheads(std::string_view regex);

}  // namespace sluice
