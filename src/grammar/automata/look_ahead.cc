// Finds where a group ends; what is within is read by the parser of expressions.
#include "grammar/automata/look_ahead.h"

#include <cstddef>

namespace sluice {
namespace {

struct RegexGroup {
  size_t end = 0;           // at its ), or at the end of the expression
  bool has_choice = false;  // an alternative that is not within a group of its own
  bool has_begin = false;   // a ^ that is no class's
};

// From within a group, or from the beginning of a part of the expression.
RegexGroup group_at(std::string_view regex, size_t pos) {
  RegexGroup group;
  int depth = 0;
  bool in_class = false;
  for (; pos < regex.size(); ++pos) {
    const char c = regex[pos];
    if (c == '\\') {
      ++pos;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (regex.substr(pos + 1).starts_with('^')) ++pos;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')' && --depth < 0) {
      break;
    }
    if (in_class || c == '\\') continue;
    group.has_choice = group.has_choice || (c == '|' && depth == 0);
    group.has_begin = group.has_begin || c == '^';
  }
  group.end = pos < regex.size() ? pos : regex.size();
  return group;
}

}  // namespace

// What stands before the first other part says something of the text from its first character on.
std::optional<LookAheads> split_look_aheads(std::string_view regex) {
  if (!regex.starts_with("^(?=") && !regex.starts_with("^(?!")) return std::nullopt;
  LookAheads result;
  size_t pos = 1;
  while (regex.substr(pos).starts_with("(?=") || regex.substr(pos).starts_with("(?!")) {
    const bool is_negative = regex[pos + 2] == '!';
    pos += 3;
    const RegexGroup whole = group_at(regex, pos);
    const bool has_anchor = regex.substr(pos).starts_with('^') && !whole.has_choice;
    if (has_anchor) ++pos;
    const RegexGroup group = group_at(regex, pos);
    if (group.has_begin || group.end == regex.size()) return std::nullopt;
    const std::string inner(regex.substr(pos, group.end - pos));
    result.all.push_back({.regex = "^(?:" + inner + ")", .is_negative = is_negative});
    pos = group.end + 1;
  }
  const RegexGroup rest = group_at(regex, pos);
  if (rest.has_choice || rest.end != regex.size()) return std::nullopt;
  result.rest = "^" + std::string(regex.substr(pos));
  return result;
}

}  // namespace sluice
