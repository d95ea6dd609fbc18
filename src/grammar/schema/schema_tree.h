// A JSON schema, what of it is refused, and its references.
//
// Used by the gate (schema_gate.h) and the writer of grammars (schema_grammar.h). Thread rule: one
// thread.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_type.h"

namespace sluice {

using Json = nlohmann::ordered_json;

// What a schema asks for and cannot be enforced. A caller who wants leniency gets a list of what
// was ignored instead of an error.
class Refusals {
 public:
  explicit Refusals(bool is_lenient) : is_lenient_(is_lenient) {}

  // `pointer`: JSON pointer of the schema that has the keyword. Errors: kInvalidArgument "schema:
  // uniqueItems at /properties/tags is not supported", unless lenient.
  void refuse(std::string_view pointer, std::string_view keyword,
              std::string_view why = "is not supported");
  // A schema that is none. Errors: kInvalidArgument, also if lenient.
  [[noreturn]] static void fail_at(std::string_view pointer, std::string_view keyword,
                                   std::string_view why);

  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  bool is_lenient_;
  std::vector<std::string> ignored_;
};

// The pointer of a part of what `pointer` names.
std::string pointer_to(std::string_view pointer, std::string_view key);

// The schema that "#" and a JSON pointer name. Null if there is none.
const Json* find_ref(const Json& root, std::string_view ref);
Json* find_ref(Json& root, std::string_view ref);

// Whether two values are equal; the order of an object's keys means nothing, and 1 is 1.0.
bool same_value(const Json& a, const Json& b);
bool has_value(const Json& list, const Json& value);
// The values of a long list.
class ValueSet {
 public:
  explicit ValueSet(const Json& list);
  bool has(const Json& value) const { return values_.contains(nlohmann::json(value)); }
  void add(const Json& value) { values_.emplace(value); }

 private:
  std::set<nlohmann::json> values_;
};
// Appends the values that `list` does not have yet.
void unite(Json& list, const Json& more);

// The types that a value may have, as bits.
enum SchemaType : unsigned {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,  // numbers that are no integers
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127,
};
// The bits of a name: "number" has two. Schemas that Sluice writes itself may have "%fraction". 0
// for an unknown one.
unsigned type_bits(std::string_view name);
// What "type" of a schema allows; all types without one.
unsigned types_of(const Json& schema);
unsigned type_of_value(const Json& value);
// The value of "type" for these bits.
Json type_names(unsigned types);

}  // namespace sluice
