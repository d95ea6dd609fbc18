// What a schema asks for under a condition, as schemas of anyOf: not, if, dependentX, unevaluatedX.
//
// Used by SchemaMerger, for a schema's own keywords. Thread rule: one thread.
//
//   not S                         the opposite of S
//   if A then B else C            both A and B, or C without A
//   dependentRequired {a: [b]}    without a, or with a and b
#pragma once

#include <string_view>
#include <vector>

#include "grammar/schema/schema_merge.h"

namespace sluice {

// Unflattened schemas, all of which must hold beside the other keywords of `schema`.
// Errors: kInvalidArgument for what cannot be written without these keywords.
std::vector<Json> conditions_of(SchemaMerger& merger, const Json& schema, std::string_view pointer);

}  // namespace sluice
