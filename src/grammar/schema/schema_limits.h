// What flat schemas say of counts, texts and numbers, in the form in which rules are written.
//
// Used by SchemaRules and by what compares schemas. Values that a schema lists are compared with
// all else that it says before they become literals; so are those of two schemas that may be
// disjoint. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/schema/number_texts.h"
#include "grammar/schema/schema_merge.h"

namespace sluice {

// Counts may be written as 3.0. Empty without the keyword.
std::optional<int64_t> count_in(const Json& schema, const char* keyword);
// The same for an upper limit; empty from 10 million on, since no answer has as much.
std::optional<int64_t> max_in(const Json& schema, const char* keyword);
// Errors: kInvalidArgument for a count that would take too many rules.
void check_repeats(const char* keyword, int64_t count);

// The texts that pattern, format, lengths and %notEnum allow; empty without any of them.
std::optional<Automaton> texts_in(SchemaMerger& merger, const Json& flat);
// The numbers of the types in `types`. Errors: kInvalidArgument for a forbidden number that has
// more digits than a double.
NumberBounds bounds_in(const Json& flat, unsigned types);

// Whether a value satisfies a schema.
bool is_valid(SchemaMerger& merger, const Json& value, const Json& schema,
              std::string_view pointer);
// All values of a flat schema, if it is plain that they are few. Each is valid.
std::optional<Json> values_of(SchemaMerger& merger, const Json& flat, std::string_view pointer);
// True if it is plain that no value satisfies a flat schema; what is not seen here costs rules.
bool is_plainly_empty(SchemaMerger& merger, const Json& flat, std::string_view pointer);

}  // namespace sluice
