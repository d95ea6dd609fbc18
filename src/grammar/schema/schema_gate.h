// The gate: whether a JSON schema asks only for what the grammar will enforce.
//
// Used before a grammar is made of the schema, on the thread of the request. It has a table of all
// keywords of draft 2020-12 and of those of older drafts that would change what is valid; others
// are annotations, as the standard says. Thread rule: free functions.
#pragma once

#include "grammar/schema/schema_tree.h"

namespace sluice {

// Schemas nested deeper are refused.
inline constexpr int kMaxSchemaDepth = 64;

// Nor is an object with more properties, required or with a schema.
inline constexpr size_t kMaxProperties = 1000;

// Checks every schema that the root or a reference reaches. If `refusals` is lenient, keywords that
// cannot be enforced are taken out of `root`.
// Errors: kInvalidArgument that names the keyword and the JSON pointer of its schema.
void check_schema(Json& root, Refusals& refusals);

}  // namespace sluice
