// The types that a JSON schema plainly allows, for readers of values that are written without
// quotes.
//
// Used by the scanner of calls and by the grammar of what it reads, so that both take a text for
// the same. Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "io/json_type.h"

namespace sluice {

enum PlainType : unsigned {
  kPlainNull = 1,
  kPlainBoolean = 2,
  kPlainNumber = 4,  // integers, too
  kPlainString = 8,
  kPlainArray = 16,
  kPlainObject = 32,
  kPlainAny = 63,
};

// The types of one property of an object, as bits: at least those that the schema allows. Type,
// enum, const, references within `parameters` and lists of schemas are looked at. All types for a
// property that is not listed.
unsigned property_types(const nlohmann::ordered_json& parameters, std::string_view property);

// The JSON text of a value that stands as it is: what it can be read as, of the types in `types`;
// otherwise the text itself, as a JSON text. True, False and None are Python's words for JSON's.
// Empty if it is not UTF-8.
std::string json_of_plain(std::string_view text, unsigned types);

// JSON whose texts have line ends and tabs as they are, as models write them, with escapes instead:
// what they mean is plain.
std::string with_escaped_controls(std::string_view json);

}  // namespace sluice
