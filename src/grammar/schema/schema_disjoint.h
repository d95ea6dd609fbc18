// Whether two schemas have no value in common, as far as that is easily seen.
//
// Used for oneOf, which is anyOf where no value satisfies two of its schemas, and for uniqueItems.
// Thread rule: one thread.
#pragma once

#include <string_view>

#include "grammar/schema/schema_merge.h"

namespace sluice {

// True if types, lists of values, bounds, texts or counts keep them apart, or a property that one
// of them requires. False means unknown. REQUIRES: flat schemas.
bool are_disjoint(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer);

}  // namespace sluice
