// The rules of a structural tag: free text in which some beginnings must go on in a given way.
//
// Part of structure_rules. Both forms of xgrammar and vLLM are read: {"structures", "triggers"} and
// {"format"}. Of the second, formats whose texts a grammar has exactly
// (docs/structured_output.md); others are refused with their JSON pointer. Thread rule: a free
// function.
#pragma once

#include <string>
#include <string_view>

#include "grammar/schema/schema_tree.h"

namespace sluice {

// `tag`: a text of JSON. Errors: kInvalidArgument with the pointer of what is wrong or not
// supported, and as schema_grammar for the schemas in it.
std::string tag_rules(std::string_view tag, Refusals& refusals);

}  // namespace sluice
