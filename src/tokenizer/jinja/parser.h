// Parses a Jinja template of the subset that chat templates use.
//
// Used by jinja::Template. Statements: for, if, set, with, macro, call, break, continue, filter,
// raw, generation. Thread rule: a free function.
#pragma once

#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace sluice::jinja {

// Errors: kUnsupported that names the line and the construct, for anything outside of the subset:
// unknown statements, filters, tests, methods and functions.
Tree parse(std::string_view source);

}  // namespace sluice::jinja
