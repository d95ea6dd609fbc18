// unevaluatedProperties and unevaluatedItems, written as keywords that do not look at others.
//
// Used by SchemaMerger. Thread rule: one thread.
//
// Which properties or items are evaluated depends on which schemas of anyOf, oneOf, if and
// dependentSchemas hold for the document. Each combination that matters is a case; its names become
// `properties` and `patternProperties` of a schema with `additionalProperties`, and its positions
// `prefixItems` of one with `items`. A schema within this one that has the keyword, too, evaluates
// all that it sees.
#pragma once

#include <string_view>

#include "grammar/schema/schema_merge.h"

namespace sluice {

// What `keyword` of `schema` asks for beside its other keywords: one of several cases, each with
// what holds in it, the names or positions that are evaluated then, and a schema for all others.
// Errors: kInvalidArgument beyond a number of cases.
Json unevaluated(SchemaMerger& merger, const Json& schema, const char* keyword,
                 std::string_view pointer);

}  // namespace sluice
