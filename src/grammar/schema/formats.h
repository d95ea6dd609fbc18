// The formats of texts that are enforced (`format` of JSON Schema), as regular expressions.
#pragma once

#include <string_view>

#include "grammar/automata/automaton.h"

namespace sluice {

// Whether draft 2020-12 defines it; what it does not define is an annotation.
bool is_standard_format(std::string_view name);
// Whether it is enforced.
bool has_format(std::string_view name);
// REQUIRES: has_format(name).
const Automaton& format_texts(std::string_view name);

}  // namespace sluice
