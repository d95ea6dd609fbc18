// The escapes of string literals in templates.
//
// Used by the lexer. Thread rule: a free function.
#pragma once

#include <string>
#include <string_view>

namespace sluice::jinja {

// The text between the quotes of a literal, with Python's escapes resolved; a backslash before any
// other character stays. Errors: kUnsupported for \N{...} and ill-formed \x, \u and \U.
std::string unescape_literal(std::string_view literal, int line);

}  // namespace sluice::jinja
