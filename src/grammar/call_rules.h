// The rules of calls of functions, in the form that a model writes them in.
//
// A function's arguments have the grammar of its schema, as a document of that schema would, so
// that all of docs/structured_output.md is true of them. Names are those of the functions, to the
// letter; blanks between the parts of a call are those of the form.
//
// Part of structure_rules. Thread rule: free functions.
#pragma once

#include <string>
#include <vector>

#include "sluice/structured_output.h"

namespace sluice {

// `or_else`: the rules of StructuredCalls::or_else; empty without it. `ignored` gets what lenient
// schemas ask for and is not enforced, with the place of the function before it.
// Errors: kInvalidArgument for schemas that cannot be enforced, which names the function's place.
std::string call_rules(const StructuredCalls& calls, const std::string& or_else,
                       std::vector<std::string>& ignored);

}  // namespace sluice
