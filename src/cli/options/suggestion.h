// The known name that a misspelt one may have meant.
//
// Used for options, commands and environment variables. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// The name of `known` that the fewest single-letter edits turn `wrong` into, if that are at most a
// third of its letters; else "".
std::string nearest(std::string_view wrong, const std::vector<std::string>& known);

// "; did you mean --top-k?" when a known name is near, else ";".
std::string suggestion(std::string_view wrong, const std::vector<std::string>& known);

}  // namespace sluice::cli
