// One row for each keyword: what its value must be, and whether it is enforced.
#include "grammar/schema/schema_gate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/number_texts.h"

namespace sluice {
namespace {

enum class Kind {
  kAnnotation,  // says nothing about values
  kSchema,
  kSchemaList,
  kSchemaMap,
  kPatternMap,  // schemas by regular expression
  kCount,
  kBound,
  kMultiple,
  kPattern,
  kFormat,
  kNames,
  kType,
  kValues,
  kAnyValue,
  kRef,
  kId,
  kUnique,
  kRefused,
};

struct Keyword {
  std::string_view name;
  Kind kind;
};

// In alphabetical order. What draft 2020-12 does not have is here if an older draft gave it a
// meaning that restricts values.
constexpr std::array kKeywords = {
    Keyword{"$anchor", Kind::kAnnotation},
    Keyword{"$comment", Kind::kAnnotation},
    Keyword{"$defs", Kind::kAnnotation},  // what a reference names is checked there
    Keyword{"$dynamicAnchor", Kind::kRefused},
    Keyword{"$dynamicRef", Kind::kRefused},
    Keyword{"$id", Kind::kId},
    Keyword{"$recursiveAnchor", Kind::kRefused},
    Keyword{"$recursiveRef", Kind::kRefused},
    Keyword{"$ref", Kind::kRef},
    Keyword{"$schema", Kind::kAnnotation},
    Keyword{"$vocabulary", Kind::kRefused},
    Keyword{"additionalItems", Kind::kRefused},
    Keyword{"additionalProperties", Kind::kSchema},
    Keyword{"allOf", Kind::kSchemaList},
    Keyword{"anyOf", Kind::kSchemaList},
    Keyword{"const", Kind::kAnyValue},
    Keyword{"contains", Kind::kRefused},
    Keyword{"contentEncoding", Kind::kAnnotation},
    Keyword{"contentMediaType", Kind::kAnnotation},
    Keyword{"contentSchema", Kind::kAnnotation},
    Keyword{"default", Kind::kAnnotation},
    Keyword{"definitions", Kind::kAnnotation},
    Keyword{"dependencies", Kind::kRefused},
    Keyword{"dependentRequired", Kind::kRefused},
    Keyword{"dependentSchemas", Kind::kRefused},
    Keyword{"deprecated", Kind::kAnnotation},
    Keyword{"description", Kind::kAnnotation},
    Keyword{"else", Kind::kRefused},
    Keyword{"enum", Kind::kValues},
    Keyword{"examples", Kind::kAnnotation},
    Keyword{"exclusiveMaximum", Kind::kBound},
    Keyword{"exclusiveMinimum", Kind::kBound},
    Keyword{"format", Kind::kFormat},
    Keyword{"if", Kind::kRefused},
    Keyword{"items", Kind::kSchema},
    Keyword{"maxContains", Kind::kRefused},
    Keyword{"maxItems", Kind::kCount},
    Keyword{"maxLength", Kind::kCount},
    Keyword{"maxProperties", Kind::kCount},
    Keyword{"maximum", Kind::kBound},
    Keyword{"minContains", Kind::kRefused},
    Keyword{"minItems", Kind::kCount},
    Keyword{"minLength", Kind::kCount},
    Keyword{"minProperties", Kind::kCount},
    Keyword{"minimum", Kind::kBound},
    Keyword{"multipleOf", Kind::kMultiple},
    Keyword{"not", Kind::kRefused},
    Keyword{"oneOf", Kind::kSchemaList},
    Keyword{"pattern", Kind::kPattern},
    Keyword{"patternProperties", Kind::kPatternMap},
    Keyword{"prefixItems", Kind::kSchemaList},
    Keyword{"properties", Kind::kSchemaMap},
    Keyword{"propertyNames", Kind::kSchema},
    Keyword{"readOnly", Kind::kAnnotation},
    Keyword{"required", Kind::kNames},
    Keyword{"then", Kind::kRefused},
    Keyword{"title", Kind::kAnnotation},
    Keyword{"type", Kind::kType},
    Keyword{"unevaluatedItems", Kind::kRefused},
    Keyword{"unevaluatedProperties", Kind::kRefused},
    Keyword{"uniqueItems", Kind::kUnique},
    Keyword{"writeOnly", Kind::kAnnotation},
};

// Walks over the schemas that the root reaches. Those under $defs are reached by references alone:
// what no value is checked against may say anything.
class Gate {
 public:
  Gate(Json& root, Refusals& refusals) : root_(root), refusals_(refusals) {}

  void check(Json& schema, const std::string& pointer, int depth);

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
  bool check_ref(const Json& value, const Place& place);
  static void check_type(const Json& value, const Place& place);
  static void check_names(const Json& value, const Place& place);

  Json& root_;
  Refusals& refusals_;
  std::set<std::string> seen_;
};

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
  std::vector<std::string> ignored;
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const auto row = std::ranges::find(kKeywords, it.key(), &Keyword::name);
    if (row == kKeywords.end()) continue;
    const Place place{.pointer = pointer, .keyword = row->name, .depth = depth};
    if (!check_keyword(it.value(), row->kind, place)) ignored.push_back(it.key());
  }
  for (const std::string& key : ignored) schema.erase(key);
}

// By the kind of the keyword, whose value may be a schema again.
bool Gate::check_keyword(Json& value, Kind kind, const Place& place) {
  switch (kind) {
    case Kind::kAnnotation:
      return true;
    case Kind::kRefused:
      return refuse(place);
    case Kind::kSchema:
      if (place.keyword == "items" && value.is_array()) {
        return refuse(place, "with a list is not supported; use prefixItems");
      }
      check(value, pointer_to(place.pointer, place.keyword), place.depth + 1);
      return true;
    case Kind::kSchemaList:
      place.require(value.is_array() && !value.empty(), "must be a list of schemas");
      check_parts(value, place);
      return true;
    case Kind::kPatternMap:
    case Kind::kSchemaMap:
      place.require(value.is_object(), "must be an object of schemas");
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
      place.require(value.is_string(), "must be a text");
      return has_format(value.get_ref<const std::string&>()) ||
             refuse(place, fmt::format("of {} is not supported", value.dump()));
    case Kind::kNames:
      check_names(value, place);
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
      return place.pointer.empty() || refuse(place, "within a schema is not supported");
    case Kind::kUnique:
      place.require(value.is_boolean(), "must be true or false");
      return !value.get<bool>() || refuse(place);
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
  if (is_whole && number <= kMaxMultiple) return true;
  return refuse(place, fmt::format("of {} is not supported; give an integer up to {}", value.dump(),
                                   kMaxMultiple));
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

// The target is checked under its own pointer, once.
bool Gate::check_ref(const Json& value, const Place& place) {
  place.require(value.is_string(), "must be a text");
  const auto& ref = value.get_ref<const std::string&>();
  if (ref.empty() || ref[0] != '#' || (ref.size() > 1 && ref[1] != '/')) {
    return refuse(place, fmt::format("to {} is not supported; write # and a JSON pointer", ref));
  }
  Json* const target = find_ref(root_, ref);
  place.require(target != nullptr, fmt::format("names {}, which is not there", ref));
  check(*target, ref.substr(1), place.depth + 1);
  return true;
}

// One name or a list of names.
void Gate::check_type(const Json& value, const Place& place) {
  const auto check_name = [&](const Json& name) {
    place.require(
        name.is_string() && type_bits(name.get_ref<const std::string&>()) != 0,
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
}

}  // namespace

void check_schema(Json& root, Refusals& refusals) { Gate(root, refusals).check(root, "", 0); }

}  // namespace sluice
