// Suggests a known name for a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// The name of `known` with the smallest edit distance to `wrong`, if that is at most a third of the
// letters of `wrong`; else "".
std::string nearest(std::string_view wrong, const std::vector<std::string>& known);

// "; did you mean --top-k?" if a known name is near, else ";".
std::string suggestion(std::string_view wrong, const std::vector<std::string>& known);

}  // namespace sluice
