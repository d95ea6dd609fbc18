// Whether two schemas have no value in common, as far as that is easily seen.
//
// Used for oneOf, which a grammar can only enforce as anyOf. Thread rule: one thread.
#pragma once

#include <string_view>

#include "grammar/schema/schema_merge.h"

namespace sluice {

// True if their types differ, if both have lists of values without a common one, or if a property
// that both require tells them apart. False means unknown. REQUIRES: flat schemas.
bool are_disjoint(SchemaMerger& merger, const Json& a, const Json& b, std::string_view pointer);

}  // namespace sluice
