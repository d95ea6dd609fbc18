// Values against flat schemas.
#include <algorithm>
#include <array>
#include <string>

#include "grammar/automata/char_set.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/schema_limits.h"

namespace sluice {
namespace {

constexpr int kMaxEmptyDepth = 4;        // properties of required properties
constexpr int kMaxCheckDepth = 128;      // parts and schemas within each other
constexpr int64_t kMaxChecks = 200'000;  // of one value

// Checks one value; `flat` is what it must satisfy.
class ValueCheck {
 public:
  ValueCheck(SchemaMerger& merger, std::string_view pointer) : merger_(merger), pointer_(pointer) {}

  bool holds(const Json& value, const Json& schema);

 private:
  bool holds_flat(const Json& value, const Json& flat);
  static bool has_length(int64_t count, const Json& flat, const char* min, const char* max);
  bool choices_hold(const Json& value, const Json& flat);
  bool text_holds(const std::string& text, const Json& flat) const;
  static bool number_holds(const Json& value, const Json& flat);
  bool array_holds(const Json& value, const Json& flat);
  bool object_holds(const Json& value, const Json& flat);

  SchemaMerger& merger_;
  std::string_view pointer_;
  int depth_ = 0;
  int64_t num_checks_ = 0;
};

// References may lead to themselves without a part of the value in between, or to others in more
// ways than can be tried.
bool ValueCheck::holds(const Json& value, const Json& schema) {
  if (++depth_ > kMaxCheckDepth || ++num_checks_ > kMaxChecks) {
    Refusals::fail_at(pointer_, "$ref", "leads to itself without end, or in too many ways");
  }
  const bool result = holds_flat(value, merger_.flat(schema, pointer_));
  --depth_;
  return result;
}

// What is cheap first: most values of a list fail by their type or by a literal.
bool ValueCheck::holds_flat(const Json& value, const Json& flat) {
  if (flat.is_boolean()) return flat.get<bool>();
  if ((type_of_value(value) & types_of(flat)) == 0) return false;
  if (flat.contains("enum") && !has_value(flat["enum"], value)) return false;
  if (flat.contains("%notEnum") && has_value(flat["%notEnum"], value)) return false;
  if (!choices_hold(value, flat)) return false;
  if (value.is_string()) return text_holds(value.get_ref<const std::string&>(), flat);
  if (value.is_number()) return number_holds(value, flat);
  if (value.is_array()) return array_holds(value, flat);
  return !value.is_object() || object_holds(value, flat);
}

// One is enough for anyOf; oneOf has to try all of them.
bool ValueCheck::choices_hold(const Json& value, const Json& flat) {
  const auto is_like = [&](const Json& schema) { return holds(value, schema); };
  const auto all = [&](const char* keyword, const auto& list_holds) {
    return !flat.contains(keyword) || std::ranges::all_of(flat[keyword], list_holds);
  };
  return all("anyOf", [&](const Json& list) { return std::ranges::any_of(list, is_like); }) &&
         all("oneOf", [&](const Json& list) { return std::ranges::count_if(list, is_like) == 1; });
}

bool ValueCheck::has_length(int64_t count, const Json& flat, const char* min, const char* max) {
  return count >= count_in(flat, min).value_or(0) && count <= count_in(flat, max).value_or(count);
}

// One automaton after another: their product would be made for each value.
bool ValueCheck::text_holds(const std::string& text, const Json& flat) const {
  const auto all = [&](const char* keyword, const auto& is_like) {
    if (!flat.contains(keyword)) return true;
    return std::ranges::all_of(flat[keyword], [&](const Json& entry) {
      return entry.is_array() != is_like((entry.is_array() ? entry[1] : entry).get<std::string>());
    });
  };
  if (flat.contains("minLength") || flat.contains("maxLength")) {
    const auto size = std::ssize(characters_of(text));
    if (!has_length(size, flat, "minLength", "maxLength")) return false;
  }
  const auto matches = [&](const std::string& p) { return merger_.pattern_texts(p).accepts(text); };
  const auto has = [&](const std::string& f) { return format_texts(f).accepts(text); };
  return all("pattern", matches) && all("format", has);
}

// Multiples are those of the decimal text, as in the grammar.
bool ValueCheck::number_holds(const Json& value, const Json& flat) {
  const auto number = value.get<double>();
  const auto compare = [&](const char* keyword, const auto& is_good) {
    const auto it = flat.find(keyword);
    return it == flat.end() || is_good(it->get<double>());
  };
  const bool is_within = compare("minimum", [&](double min) { return number >= min; }) &&
                         compare("exclusiveMinimum", [&](double min) { return number > min; }) &&
                         compare("maximum", [&](double max) { return number <= max; }) &&
                         compare("exclusiveMaximum", [&](double max) { return number < max; });
  if (!is_within || !flat.contains("multipleOf")) return is_within;
  const bool is_exact = value.is_number_integer();
  const auto decimal = is_exact ? decimal_of_text(value.dump()) : decimal_of(number);
  const auto bounds = bounds_in(Json::object({{"multipleOf", flat["multipleOf"]}}), kAllTypes);
  return std::ranges::all_of(bounds.multiples, [&](const Multiple& m) {
    return decimal && is_multiple(*decimal, m) != m.is_forbidden;
  });
}

// Items that a prefix does not name share one schema. What is counted is counted from its position
// on, as the grammar does.
bool ValueCheck::array_holds(const Json& value, const Json& flat) {
  if (!has_length(std::ssize(value), flat, "minItems", "maxItems")) return false;
  const Json prefix = flat.contains("prefixItems") ? flat["prefixItems"] : Json::array();
  const Json rest = SchemaMerger::rest_items(flat);
  for (size_t i = 0; i < value.size(); ++i) {
    if (!holds(value[i], i < prefix.size() ? prefix[i] : rest)) return false;
    if (!flat.contains("uniqueItems")) continue;
    for (size_t j = 0; j < i; ++j) {
      if (same_value(value[j], value[i])) return false;
    }
  }
  if (!flat.contains("%contains")) return true;
  return std::ranges::all_of(flat["%contains"], [&](const Json& entry) {
    int64_t count = 0;
    for (auto i = entry["from"].get<size_t>(); i < value.size(); ++i) {
      count += holds(value[i], entry["schema"]) ? 1 : 0;
    }
    return count >= *count_in(entry, "min") && count <= count_in(entry, "max").value_or(count);
  });
}

// Names first, then the schema that all parts together give each property.
bool ValueCheck::object_holds(const Json& value, const Json& flat) {
  if (!has_length(std::ssize(value), flat, "minProperties", "maxProperties")) return false;
  if (flat.contains("required")) {
    for (const Json& name : flat["required"]) {
      if (!value.contains(name.get_ref<const std::string&>())) return false;
    }
  }
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (flat.contains("propertyNames") && !holds(Json(it.key()), flat["propertyNames"])) {
      return false;
    }
    if (!holds(it.value(), merger_.property_schema(flat, it.key()))) return false;
  }
  return true;
}

// The values that a flat schema lists, or null.
const Json* candidates_of(const Json& flat) {
  static const Json kFew = Json::array({nullptr, false, true});
  const auto listed = flat.find("enum");
  if (listed != flat.end()) return &*listed;
  return (types_of(flat) & ~(kNullType | kBooleanType)) == 0 ? &kFew : nullptr;
}

// Values are compared with the rest: with the list itself each of them would be looked for once
// more.
Json without_list(Json flat) {
  flat.erase("enum");
  return flat;
}

// Deeper is seldom of use: what tells choices apart is mostly a property of their own.
bool is_empty(SchemaMerger& merger, const Json& flat, std::string_view pointer, int depth) {
  if (flat.is_boolean()) return !flat.get<bool>();
  if (const Json* const values = candidates_of(flat)) {
    const Json rest = without_list(flat);
    return std::ranges::none_of(
        *values, [&](const Json& value) { return is_valid(merger, value, rest, pointer); });
  }
  const bool may_know = types_of(flat) == kObjectType && depth < kMaxEmptyDepth;
  if (!may_know || !flat.contains("required")) return false;
  return std::ranges::any_of(flat["required"], [&](const Json& name) {
    const Json property = merger.property_schema(flat, name);
    return is_empty(merger, merger.flat(property, pointer), pointer, depth + 1);
  });
}

}  // namespace

bool is_valid(SchemaMerger& merger, const Json& value, const Json& schema,
              std::string_view pointer) {
  return ValueCheck(merger, pointer).holds(value, schema);
}

// In the order of the list, and as they are written there.
std::optional<Json> values_of(SchemaMerger& merger, const Json& flat, std::string_view pointer) {
  const Json* const candidates = candidates_of(flat);
  if (candidates == nullptr) return std::nullopt;
  const Json rest = without_list(flat);
  Json values = Json::array();
  for (const Json& value : *candidates) {
    if (is_valid(merger, value, rest, pointer)) values.push_back(value);
  }
  return values;
}

bool is_plainly_empty(SchemaMerger& merger, const Json& flat, std::string_view pointer) {
  return is_empty(merger, flat, pointer, 0);
}

}  // namespace sluice
