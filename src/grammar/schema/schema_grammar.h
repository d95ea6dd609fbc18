// The grammar of a JSON schema: the documents that it allows, as rules.
//
// Used to compile structured output. Exactly the documents that are valid, with three choices of
// how they are written: properties in the order of the schema, then others; at most eight blanks
// between two tokens; numbers with bounds without an exponent. Thread rule: free functions.
#pragma once

#include <string>
#include <string_view>

#include "grammar/schema/schema_tree.h"
#include "sluice/structured_output.h"

namespace sluice {

// The rules, whose first is "root". `schema` is a text of JSON. With `parameters`, documents are
// objects that are written in this form.
// Errors: kInvalidArgument for a text that is no schema, for what cannot be enforced unless
// `refusals` is lenient, for a schema that no value satisfies, and beyond the limits of size.
std::string schema_grammar(std::string_view schema, Refusals& refusals,
                           const ParameterForm* parameters = nullptr);

}  // namespace sluice
