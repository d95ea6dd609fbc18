// The variables that a template takes from outside.
//
// Used by jinja::Template. Thread rule: a free function.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/jinja/ast.h"

namespace sluice::jinja {

// The names that a rendering may look up without the template having assigned them, sorted.
//
// A name that only some branches assign is free after them. Global functions are left out.
// Source: jinja2.meta.find_undeclared_variables, which takes some assigned names for free.
std::vector<std::string> free_names(const Tree& tree);

}  // namespace sluice::jinja
