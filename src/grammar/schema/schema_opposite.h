// The schema that allows exactly what another one does not.
//
// Used for not, if, and oneOf whose schemas overlap. Thread rule: one thread.
//
//   {"type": "string", "minLength": 2}     another type, or a text of at most one character
//   {"required": ["a", "b"]}               an object without a, or one without b
//   {"items": S}                           an array with at least one item that S does not allow
//   {"anyOf": [A, B]}                      neither A nor B
//
// An opposite says the same of types that are not named in it as its schema does of them: nothing.
#pragma once

#include <string_view>

#include "grammar/schema/schema_merge.h"

namespace sluice {

// The schema under "not".
Json opposite(const Json& schema);

// The same without "not" at its top: an unflattened schema, whose parts are opposites that are
// written when they are looked at. Errors: kInvalidArgument for what has no opposite: that some of
// the names that a schema does not list has, or has not, some value, since a name may come twice;
// and uniqueItems.
Json opposite_of(SchemaMerger& merger, const Json& schema, std::string_view pointer);

}  // namespace sluice
