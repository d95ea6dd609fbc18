// One row for each keyword: what its value must be, and whether it is enforced.
#include "grammar/schema/schema_gate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/number_texts.h"
#include "grammar/schema/schema_uris.h"

namespace sluice {
namespace {

enum class Kind {
  kAnnotation,  // says nothing about values
  kSchema,      // of the value, of parts of it, or of names
  kOpposite,    // a schema that is also asked the other way round
  kSchemaList,  // not empty
  kSchemaMap,   // by name
  kPatternMap,  // schemas by regular expression
  kCount,       // an integer from 0, also as 3.0
  kBound,       // a number that has few digits
  kMultiple,    // a number above 0 that has few digits
  kPattern,     // a regular expression
  kFormat,      // a name of a regular expression
  kNames,       // a list of names
  kNameLists,   // lists of names by name
  kType,        // a name of a type, or a list of them
  kValues,      // a list that is not empty
  kAnyValue,    // nothing can be wrong with it
  kRef,         // a URI within the document
  kId,          // a text, which SchemaUris has read
  kUnique,      // true or false
  kRefused,     // whatever it says
};

struct Keyword {
  std::string_view name;
  Kind kind;
};

// In alphabetical order. What draft 2020-12 does not have is here if an older draft gave it a
// meaning that restricts values.
constexpr std::array kKeywords = {
    Keyword{"$anchor", Kind::kId},
    Keyword{"$comment", Kind::kAnnotation},
    Keyword{"$defs", Kind::kAnnotation},  // what a reference names is checked there
    Keyword{"$dynamicAnchor", Kind::kId},
    Keyword{"$dynamicRef", Kind::kRef},  // where it can only mean one place
    Keyword{"$id", Kind::kId},
    Keyword{"$recursiveAnchor", Kind::kRefused},  // draft 2019-09
    Keyword{"$recursiveRef", Kind::kRefused},     // draft 2019-09
    Keyword{"$ref", Kind::kRef},
    Keyword{"$schema", Kind::kAnnotation},
    Keyword{"$vocabulary", Kind::kRefused},         // of meta-schemas, which are not read
    Keyword{"additionalItems", Kind::kAnnotation},  // see modernise
    Keyword{"additionalProperties", Kind::kSchema},
    Keyword{"allOf", Kind::kSchemaList},
    Keyword{"anyOf", Kind::kSchemaList},
    Keyword{"const", Kind::kAnyValue},
    Keyword{"contains", Kind::kSchema},
    Keyword{"contentEncoding", Kind::kAnnotation},
    Keyword{"contentMediaType", Kind::kAnnotation},
    Keyword{"contentSchema", Kind::kAnnotation},  // of what a text encodes
    Keyword{"default", Kind::kAnnotation},
    Keyword{"definitions", Kind::kAnnotation},   // $defs before draft 2019-09
    Keyword{"dependencies", Kind::kAnnotation},  // see modernise
    Keyword{"dependentRequired", Kind::kNameLists},
    Keyword{"dependentSchemas", Kind::kSchemaMap},
    Keyword{"deprecated", Kind::kAnnotation},
    Keyword{"description", Kind::kAnnotation},
    Keyword{"else", Kind::kSchema},
    Keyword{"enum", Kind::kValues},
    Keyword{"examples", Kind::kAnnotation},
    Keyword{"exclusiveMaximum", Kind::kBound},
    Keyword{"exclusiveMinimum", Kind::kBound},
    Keyword{"format", Kind::kFormat},
    Keyword{"if", Kind::kOpposite},  // its opposite stands beside "else"
    Keyword{"items", Kind::kSchema},
    Keyword{"maxContains", Kind::kCount},
    Keyword{"maxItems", Kind::kCount},
    Keyword{"maxLength", Kind::kCount},
    Keyword{"maxProperties", Kind::kCount},
    Keyword{"maximum", Kind::kBound},
    Keyword{"minContains", Kind::kCount},  // means nothing without "contains"
    Keyword{"minItems", Kind::kCount},
    Keyword{"minLength", Kind::kCount},
    Keyword{"minProperties", Kind::kCount},
    Keyword{"minimum", Kind::kBound},
    Keyword{"multipleOf", Kind::kMultiple},
    Keyword{"not", Kind::kOpposite},
    Keyword{"oneOf", Kind::kSchemaList},
    Keyword{"pattern", Kind::kPattern},
    Keyword{"patternProperties", Kind::kPatternMap},
    Keyword{"prefixItems", Kind::kSchemaList},
    Keyword{"properties", Kind::kSchemaMap},
    Keyword{"propertyNames", Kind::kSchema},
    Keyword{"readOnly", Kind::kAnnotation},
    Keyword{"required", Kind::kNames},
    Keyword{"then", Kind::kSchema},
    Keyword{"title", Kind::kAnnotation},
    Keyword{"type", Kind::kType},
    Keyword{"unevaluatedItems", Kind::kSchema},
    Keyword{"unevaluatedProperties", Kind::kSchema},
    Keyword{"uniqueItems", Kind::kUnique},
    Keyword{"writeOnly", Kind::kAnnotation},
};

// Walks over the schemas that the root reaches. Those under $defs are reached by references alone:
// what no value is checked against may say anything.
class Gate {
 public:
  Gate(Json& root, Refusals& refusals) : root_(root), refusals_(refusals), uris_(root) {}

  void check(Json& schema, const std::string& pointer, int depth);
  void drop_ignored();

 private:
  // A keyword of a schema.
  struct Place {
    const std::string& pointer;
    std::string_view keyword;
    int depth;

    std::string part(std::string_view key) const {
      return pointer_to(pointer_to(pointer, keyword), key);
    }
    [[noreturn]] void fail(std::string_view why) const { Refusals::fail_at(pointer, keyword, why); }
    void require(bool condition, std::string_view why) const {
      if (!condition) fail(why);
    }
  };

  // False if the keyword is to be ignored.
  bool check_keyword(Json& value, Kind kind, const Place& place);
  bool refuse(const Place& place, std::string_view why = "is not supported") {
    refusals_.refuse(place.pointer, place.keyword, why);
    return false;
  }
  void check_parts(Json& value, const Place& place);
  bool check_number(const Json& value, Kind kind, const Place& place);
  bool check_regex(const std::string& regex, const Place& place);
  bool check_opposite(Json& value, const Place& place);
  bool check_format(const Json& value, const Place& place);
  bool check_ref(Json& value, const Place& place);
  static void check_type(const Json& value, const Place& place);
  static void check_count(const Json& value, const Place& place) {
    place.require(
        value.size() <= kMaxProperties,
        fmt::format("has {} entries; at most {} are supported", value.size(), kMaxProperties));
  }
  static void check_names(const Json& value, const Place& place);
  static void check_name_lists(const Json& value, const Place& place);

  Json& root_;
  Refusals& refusals_;
  const SchemaUris uris_;
  std::set<std::string> seen_;
  std::vector<std::pair<std::string, std::string>> ignored_;  // pointers and keywords
};

// A schema that several references name is checked once, under the pointer of its place. Its
// keywords are checked in the order in which they stand, so that the first one that is refused is
// named.
void Gate::check(Json& schema, const std::string& pointer, int depth) {
  if (schema.is_boolean()) return;
  if (!schema.is_object()) {
    fail(ErrorCode::kInvalidArgument, "schema: {} must be an object, true or false",
         pointer.empty() ? "it" : pointer);
  }
  if (!seen_.insert(pointer).second) return;
  if (depth > kMaxSchemaDepth) {
    fail(ErrorCode::kInvalidArgument, "schema: {} is nested deeper than {} schemas", pointer,
         kMaxSchemaDepth);
  }
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    // Those are keywords of flat schemas (schema_merge.h).
    if (it.key().starts_with('%')) Refusals::fail_at(pointer, it.key(), "is not supported");
    const auto row = std::ranges::find(kKeywords, it.key(), &Keyword::name);
    if (row == kKeywords.end()) continue;
    const bool has_no_if = !schema.contains("if") && (it.key() == "then" || it.key() == "else");
    if (has_no_if) continue;
    const Place place{.pointer = pointer, .keyword = row->name, .depth = depth};
    if (!check_keyword(it.value(), row->kind, place)) ignored_.emplace_back(pointer, it.key());
  }
}

// After all checks: schemas that are looked at must not move.
void Gate::drop_ignored() {
  for (const auto& [pointer, keyword] : ignored_) {
    Json* const schema = find_ref(root_, '#' + pointer);
    if (schema != nullptr) schema->erase(keyword);
  }
}

// By the kind of the keyword, whose value may be a schema again.
bool Gate::check_keyword(Json& value, Kind kind, const Place& place) {
  switch (kind) {
    case Kind::kAnnotation:
      return true;
    case Kind::kRefused:
      return refuse(place);
    case Kind::kSchema:
      place.require(!value.is_array(), "must be a schema");
      check(value, pointer_to(place.pointer, place.keyword), place.depth + 1);
      return true;
    case Kind::kOpposite:
      return check_opposite(value, place);
    case Kind::kSchemaList:
      place.require(value.is_array() && !value.empty(), "must be a list of schemas");
      check_parts(value, place);
      return true;
    case Kind::kPatternMap:
    case Kind::kSchemaMap:
      place.require(value.is_object(), "must be an object of schemas");
      check_count(value, place);
      for (auto it = value.begin(); kind == Kind::kPatternMap && it != value.end(); ++it) {
        if (!check_regex(it.key(), place)) return false;
      }
      check_parts(value, place);
      return true;
    case Kind::kCount:
    case Kind::kBound:
    case Kind::kMultiple:
      return check_number(value, kind, place);
    case Kind::kPattern:
      place.require(value.is_string(), "must be a text");
      return check_regex(value.get_ref<const std::string&>(), place);
    case Kind::kFormat:
      return check_format(value, place);
    case Kind::kNames:
      check_names(value, place);
      return true;
    case Kind::kNameLists:
      check_name_lists(value, place);
      return true;
    case Kind::kType:
      check_type(value, place);
      return true;
    case Kind::kValues:
      place.require(value.is_array() && !value.empty(), "must be a list of values");
      return true;
    case Kind::kAnyValue:
      return true;
    case Kind::kRef:
      return check_ref(value, place);
    case Kind::kId:
      place.require(value.is_string(), "must be a text");
      return true;
    case Kind::kUnique:
      place.require(value.is_boolean(), "must be true or false");
      return true;
  }
  return true;
}

// The schemas of a list or an object, each under its own pointer.
void Gate::check_parts(Json& value, const Place& place) {
  size_t index = 0;
  for (auto it = value.begin(); it != value.end(); ++it, ++index) {
    const std::string key = value.is_array() ? std::to_string(index) : it.key();
    check(it.value(), place.part(key), place.depth + 1);
  }
}

// Counts from 0, bounds with the digits of a double, and multiples that an automaton can count.
bool Gate::check_number(const Json& value, Kind kind, const Place& place) {
  place.require(value.is_number(), "must be a number");
  const double number = value.get<double>();
  const bool is_whole = std::trunc(number) == number;
  if (kind == Kind::kCount) {
    place.require(is_whole && number >= 0, "must be an integer from 0");
    return true;
  }
  if (kind == Kind::kBound) {
    return decimal_of(number) || refuse(place,
                                        "has more than 15 digits or an exponent, which is "
                                        "not supported");
  }
  place.require(number > 0, "must be above 0");
  if (multiple_of(number)) return true;
  return refuse(place, fmt::format("of {} is not supported; give a number whose digits are at most "
                                   "{}, as 0.25 and 1000",
                                   value.dump(), kMaxMultiple));
}

// Without a part that is ignored, its opposite would ask for too much.
bool Gate::check_opposite(Json& value, const Place& place) {
  const size_t num_ignored = refusals_.ignored().size();
  check(value, pointer_to(place.pointer, place.keyword), place.depth + 1);
  return refusals_.ignored().size() == num_ignored;
}

// What the standard does not define is an annotation, as keywords are, and taken out.
bool Gate::check_format(const Json& value, const Place& place) {
  place.require(value.is_string(), "must be a text");
  const auto& name = value.get_ref<const std::string&>();
  if (!is_standard_format(name)) return false;
  return has_format(name) || refuse(place, fmt::format("of {} is not supported", value.dump()));
}

// The same parser as for the grammar, so that what it accepts here it can write.
bool Gate::check_regex(const std::string& regex, const Place& place) {
  try {
    of_regex(regex, RegexUse::kAnywhere);
    return true;
  } catch (const Error& error) {
    return refuse(place, fmt::format("is not supported: {}", error.message()));
  }
}

// The target is checked under its own pointer, once; what follows finds it by that pointer.
bool Gate::check_ref(Json& value, const Place& place) {
  place.require(value.is_string(), "must be a text");
  const std::string ref = value.get<std::string>();
  const auto pointer = place.keyword == "$ref" ? uris_.resolve(place.pointer, ref)
                                               : uris_.resolve_dynamic(place.pointer, ref);
  if (!pointer) {
    return refuse(place, fmt::format("to {} is not supported; write # and a JSON pointer", ref));
  }
  value = '#' + *pointer;
  Json* const target = find_ref(root_, value.get_ref<const std::string&>());
  place.require(target != nullptr, fmt::format("names {}, which is not there", ref));
  check(*target, *pointer, place.depth + 1);
  return true;
}

// One name or a list of names.
void Gate::check_type(const Json& value, const Place& place) {
  const auto check_name = [&](const Json& name) {
    place.require(
        name.is_string() && !name.get_ref<const std::string&>().starts_with('%') &&
            type_bits(name.get_ref<const std::string&>()) != 0,
        fmt::format("has {}; give null, boolean, integer, number, string, array or object",
                    name.dump()));
  };
  if (!value.is_array()) return check_name(value);
  place.require(!value.empty(), "has no type");
  std::ranges::for_each(value, check_name);
}

// A name may come twice, which means nothing.
void Gate::check_names(const Json& value, const Place& place) {
  const auto is_text = [](const Json& name) { return name.is_string(); };
  place.require(value.is_array() && std::ranges::all_of(value, is_text), "must be a list of names");
  check_count(value, place);
}

// Names that others depend on.
void Gate::check_name_lists(const Json& value, const Place& place) {
  place.require(value.is_object(), "must be an object of lists of names");
  for (const Json& names : value) check_names(names, place);
}

// Writes one schema as draft 2020-12 does.
void modernise_keywords(Json& schema) {
  const auto items = schema.find("items");
  if (items != schema.end() && items->is_array() && !schema.contains("prefixItems")) {
    Json prefix = std::move(*items);
    schema.erase("items");
    if (schema.contains("additionalItems")) schema["items"] = Json(schema["additionalItems"]);
    if (!prefix.empty()) schema["prefixItems"] = std::move(prefix);
  }
  const auto dependencies = schema.find("dependencies");
  if (dependencies == schema.end() || !dependencies->is_object()) return;
  Json part = {{"dependentRequired", Json::object()}, {"dependentSchemas", Json::object()}};
  for (auto it = dependencies->begin(); it != dependencies->end(); ++it) {
    part[it->is_array() ? "dependentRequired" : "dependentSchemas"][it.key()] = it.value();
  }
  if (!schema.contains("allOf")) schema["allOf"] = Json::array();
  if (schema["allOf"].is_array()) schema["allOf"].push_back(std::move(part));
}

// All that keywords hold, before anything refers to it.
void modernise(Json& schema, int depth) {
  if (!schema.is_object() || depth > 2 * kMaxSchemaDepth) return;
  modernise_keywords(schema);
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const auto row = std::ranges::find(kKeywords, it.key(), &Keyword::name);
    if (row == kKeywords.end()) continue;
    const Kind kind = row->kind;
    const bool is_defs = it.key() == "$defs" || it.key() == "definitions";
    const bool is_many = kind == Kind::kSchemaList || kind == Kind::kSchemaMap ||
                         kind == Kind::kPatternMap || is_defs;
    if (is_many && it->is_structured()) {
      for (Json& part : *it) modernise(part, depth + 1);
    } else if (kind == Kind::kSchema || kind == Kind::kOpposite) {
      modernise(it.value(), depth + 1);
    }
  }
}

}  // namespace

// Only a schema that is reached is checked, but all are modernised: references go by pointers that
// stay.
void check_schema(Json& root, Refusals& refusals) {
  modernise(root, 0);
  Gate gate(root, refusals);
  gate.check(root, "", 0);
  gate.drop_ignored();
}

}  // namespace sluice
