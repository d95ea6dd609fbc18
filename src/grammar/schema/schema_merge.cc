// Keyword by keyword; those of lists depend on each other and are merged together.
#include "grammar/schema/schema_merge.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/schema/schema_conditions.h"

namespace sluice {
namespace {

constexpr int kMaxMergeDepth = 64;       // references and parts within each other
constexpr int64_t kMaxMerged = 200'000;  // of one schema; some milliseconds for each hundred

// What flat schemas keep.
constexpr std::array kConstraints = std::to_array<std::string_view>({"type",
                                                                     "enum",
                                                                     "anyOf",
                                                                     "oneOf",
                                                                     "format",
                                                                     "pattern",
                                                                     "minLength",
                                                                     "maxLength",
                                                                     "minimum",
                                                                     "maximum",
                                                                     "multipleOf",
                                                                     "minItems",
                                                                     "maxItems",
                                                                     "minProperties",
                                                                     "maxProperties",
                                                                     "required",
                                                                     "const",
                                                                     "propertyNames",
                                                                     "uniqueItems",
                                                                     "exclusiveMinimum",
                                                                     "exclusiveMaximum",
                                                                     "properties",
                                                                     "patternProperties",
                                                                     "%notEnum",
                                                                     "%others",
                                                                     "%contains"});
constexpr std::array<std::string_view, 2> kOfArrays = {"prefixItems", "items"};
constexpr std::array<std::string_view, 5> kLists = {"format", "pattern", "multipleOf", "anyOf",
                                                    "oneOf"};

template <typename Keys>
bool has_any(const Json& schema, const Keys& keys) {
  return std::ranges::any_of(keys, [&](std::string_view key) { return schema.contains(key); });
}

template <typename Keys>
void copy(const Json& from, const Keys& keys, Json& to) {
  for (const std::string_view key : keys) {
    const auto it = from.find(key);
    if (it != from.end()) to[std::string(key)] = *it;
  }
}

// Names or patterns, which say what additionalProperties is not about.
Json keys_of(const Json& schema, const char* keyword) {
  Json keys = Json::array();
  const auto it = schema.find(keyword);
  if (it == schema.end()) return keys;
  for (auto entry = it->begin(); entry != it->end(); ++entry) keys.push_back(entry.key());
  return keys;
}

// Puts what stands alone in a schema of a user into a list, since two schemas may each have one. A
// schema that was flat already stays as it is.
void wrap_lists(Json& schema) {
  for (const std::string_view key : kLists) {
    const auto it = schema.find(key);
    if (it == schema.end()) continue;
    const bool is_choice = key == "anyOf" || key == "oneOf";
    const bool is_wrapped = is_choice ? it->front().is_array() : it->is_array();
    if (!is_wrapped) *it = Json::array({std::move(*it)});
  }
}

// additionalProperties and contains, which say what they mean only beside other keywords.
void copy_dependent(const Json& from, Json& to) {
  const auto others = from.find("additionalProperties");
  if (others != from.end() && *others != Json(true) && *others != Json::object()) {
    to["%others"] = Json::array({{{"names", keys_of(from, "properties")},
                                  {"patterns", keys_of(from, "patternProperties")},
                                  {"schema", *others}}});
  }
  const auto contained = from.find("contains");
  if (contained == from.end()) return;
  Json entry = {{"schema", *contained}, {"min", 1}, {"from", 0}};
  if (from.contains("minContains")) entry["min"] = from["minContains"];
  if (from.contains("maxContains")) entry["max"] = from["maxContains"];
  if (entry["min"].get<double>() > 0 || entry.contains("max"))
    to["%contains"] = Json::array({entry});
}

// Both must hold; the caller has put "enum" into `schema` if it had none.
void keep_values(Json& schema, const Json& values) {
  const ValueSet allowed(values);
  Json kept = Json::array();
  for (const Json& value : schema["enum"]) {
    if (allowed.has(value)) kept.push_back(value);
  }
  schema["enum"] = std::move(kept);
}

// A copy without annotations, in the form of flat schemas but for what `flat` resolves.
Json normal(const Json& schema) {
  Json result = Json::object();
  copy(schema, kConstraints, result);
  copy(schema, kOfArrays, result);
  if (result.contains("uniqueItems") && result["uniqueItems"] == Json(false)) {
    result.erase("uniqueItems");
  }
  wrap_lists(result);
  copy_dependent(schema, result);
  const auto constant = result.find("const");
  if (constant == result.end()) return result;
  const Json values = Json::array({*constant});
  result.erase("const");
  if (!result.contains("enum")) result["enum"] = values;
  keep_values(result, values);
  return result;
}

// Drops what is about types that no value may have. Choices that differ in nothing else are equal
// then, which keeps their number small.
void trim(Json& flat) {
  struct Group {
    unsigned types;
    std::vector<const char*> keywords;
  };
  static const std::vector<Group> kGroups = {
      {kStringType, {"pattern", "format", "minLength", "maxLength"}},
      {kIntegerType | kFractionType,
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {kArrayType, {"prefixItems", "items", "minItems", "maxItems", "uniqueItems", "%contains"}},
      {kObjectType,
       {"properties", "patternProperties", "propertyNames", "required", "minProperties",
        "maxProperties", "%others"}}};
  if (!flat.is_object() || !flat.contains("type")) return;
  const unsigned types = types_of(flat);
  for (const Group& group : kGroups) {
    if ((types & group.types) != 0) continue;
    for (const char* keyword : group.keywords) flat.erase(keyword);
  }
}

// Whether a schema is about texts, numbers and listed values alone, so that it contains no other
// and can be merged at once.
bool is_simple(const Json& schema) {
  static const std::set<std::string_view> kSimple = {
      "type",       "enum",      "const",   "format",           "pattern",
      "minLength",  "maxLength", "minimum", "maximum",          "exclusiveMinimum",
      "multipleOf", "title",     "default", "exclusiveMaximum", "description",
      "examples",   "$comment",  "%notEnum"};
  if (!schema.is_object()) return false;
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const bool is_opposite = it.key() == "not" && is_simple(it.value());
    if (!is_opposite && !kSimple.contains(it.key())) return false;
  }
  return true;
}

// The same by position: what follows the shorter prefix is its `items`.
void merge_arrays(Json& all, const Json& other) {
  static const Json kNone = Json::array();
  const auto prefix = [](const Json& schema) -> const Json& {
    const auto it = schema.find("prefixItems");
    return it == schema.end() ? kNone : *it;
  };
  const auto of = [&](const Json& schema, size_t index) {
    return index < prefix(schema).size() ? prefix(schema)[index] : SchemaMerger::rest_items(schema);
  };
  Json merged = Json::array();
  const size_t count = std::max(prefix(all).size(), prefix(other).size());
  for (size_t i = 0; i < count; ++i) merged.push_back(pair_of(of(all, i), of(other, i)));
  const Json rest = pair_of(SchemaMerger::rest_items(all), SchemaMerger::rest_items(other));
  if (!merged.empty()) all["prefixItems"] = std::move(merged);
  all["items"] = rest;
}

}  // namespace

// Not merged yet, so that schemas that contain themselves end.
Json pair_of(const Json& a, const Json& b) {
  if (a == Json(true) || a == b || b == Json(false)) return b;
  if (b == Json(true) || a == Json(false)) return a;
  const bool is_list = a.size() == 1 && a.contains("allOf");  // of an earlier pair, say
  Json parts = is_list ? Json(a["allOf"]) : Json::array({a});
  if (std::ranges::find(parts, b) == parts.end()) parts.push_back(b);
  return Json::object({{"allOf", std::move(parts)}});
}

Json SchemaMerger::rest_items(const Json& flat) {
  const auto it = flat.find("items");
  return it == flat.end() ? Json(true) : *it;
}

// What is not there any more was ignored, as the caller wanted.
const Json& SchemaMerger::target_of(const Json& ref) const {
  static const Json kAnything = true;
  const Json* const target = find_ref(root_, ref.get_ref<const std::string&>());
  return target == nullptr ? kAnything : *target;
}

// What stands beside $ref and allOf counts as one more part of them, as in draft 2020-12.
Json SchemaMerger::flat(const Json& schema, std::string_view pointer) {
  if (schema.is_boolean()) return schema;
  if (++depth_ > kMaxMergeDepth) {
    Refusals::fail_at(pointer, "$ref", "leads to itself without end");
  }
  Json all = normal(schema);
  if (all.contains("enum") && all["enum"].empty()) all = false;
  for (const char* keyword : {"$ref", "$dynamicRef"}) {
    const auto ref = schema.find(keyword);
    if (ref != schema.end()) merge_into(all, flat_ref(ref->get<std::string>()), pointer);
  }
  const auto parts = schema.find("allOf");
  if (parts != schema.end()) {
    for (const Json& part : *parts) merge_into(all, flat(part, pointer), pointer);
  }
  // Last, so that properties that they name come after those of the schema itself.
  for (const Json& condition : conditions_of(*this, schema, pointer)) {
    merge_into(all, flat(condition, pointer), pointer);
  }
  --depth_;
  trim(all);
  return all;
}

// References that ask for each other several times would otherwise take a time that doubles with
// each of them.
const Json& SchemaMerger::flat_ref(const std::string& ref) {
  const auto known = flat_refs_.find(ref);
  if (known != flat_refs_.end()) return known->second;
  Json made = flat(target_of(ref), ref.substr(1));
  return flat_refs_.emplace(ref, std::move(made)).first->second;
}

// A choice with all that stands beside it. Most pairs end here: types or listed values that have
// nothing in common make `false`.
Json SchemaMerger::both(const Json& a, const Json& b, std::string_view pointer) {
  Json all = flat(a, pointer);
  merge_into(all, flat(b, pointer), pointer);
  trim(all);
  return all;
}

// A name has to satisfy what each part says of it. What is simple is merged now: of a kind that is
// compared with one value after another only what is left is kept.
void SchemaMerger::merge_maps(Json& value, const Json& other, std::string_view pointer) {
  for (auto it = other.begin(); it != other.end(); ++it) {
    const auto known = value.find(it.key());
    if (known == value.end()) {
      value[it.key()] = it.value();
    } else if (*known != it.value() && is_simple(*known) && is_simple(it.value())) {
      *known = both(*known, it.value(), pointer);
    } else {
      *known = pair_of(*known, it.value());
    }
  }
}

// Keywords that only one of them has are taken as they are.
void SchemaMerger::merge_into(Json& all, const Json& other, std::string_view pointer) {
  if (++num_merged_ > kMaxMerged) {
    Refusals::fail_at(pointer, "allOf", "or choices come to too many parts; give a smaller schema");
  }
  if (all == Json(false) || other == Json(true)) return;
  if (all == Json(true) || other == Json(false)) {
    all = other;
    return;
  }
  if (has_any(all, kOfArrays) && has_any(other, kOfArrays)) {
    merge_arrays(all, other);
  } else {
    copy(other, kOfArrays, all);
  }
  for (auto it = other.begin(); it != other.end() && all.is_object(); ++it) {
    if (std::ranges::find(kOfArrays, it.key()) != kOfArrays.end()) continue;
    if (all.contains(it.key())) {
      merge_key(all, it.key(), it.value(), pointer);
    } else {
      all[it.key()] = it.value();
    }
  }
}

// The tighter one of two limits, what two lists have in common or have together.
void SchemaMerger::merge_key(Json& all, const std::string& key, const Json& other,
                             std::string_view pointer) {
  Json& value = all[key];
  if (value == other) return;
  const bool is_min = key.starts_with("min") || key == "exclusiveMinimum";
  if (key == "type") {
    const unsigned types = types_of(all) & types_of(Json::object({{"type", other}}));
    if (types == 0) {
      all = false;
    } else {
      value = type_names(types);
    }
  } else if (key == "enum") {
    keep_values(all, other);
    if (all["enum"].empty()) all = false;
  } else if (key == "properties" || key == "patternProperties") {
    merge_maps(value, other, pointer);
  } else if (key == "propertyNames") {
    value = pair_of(value, other);
  } else if (is_min || key.starts_with("max") || key == "exclusiveMaximum") {
    const bool is_tighter = is_min ? other > value : other < value;
    if (is_tighter) value = other;
  } else {
    unite(value, other);
  }
}

// %others has an entry for each additionalProperties that came in: it is about the properties of
// its own schema, and merging must not change which these are.
Json SchemaMerger::property_schema(const Json& flat, const std::string& name) {
  Json all = true;
  const auto properties = flat.find("properties");
  if (properties != flat.end() && properties->contains(name)) all = (*properties)[name];
  const auto patterns = flat.find("patternProperties");
  if (patterns != flat.end()) {
    for (auto it = patterns->begin(); it != patterns->end(); ++it) {
      if (pattern_texts(it.key()).accepts(name)) all = pair_of(all, it.value());
    }
  }
  const auto others = flat.find("%others");
  if (others == flat.end()) return all;
  for (const Json& other : *others) {
    const Json& names = other["names"];
    if (std::ranges::find(names, Json(name)) != names.end()) continue;
    if (!matches_any(other["patterns"], name)) all = pair_of(all, other["schema"]);
  }
  return all;
}

// A pattern is asked about every name of its object.
const Automaton& SchemaMerger::pattern_texts(const std::string& pattern) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  return patterns_.emplace(pattern, of_regex(pattern, RegexUse::kAnywhere)).first->second;
}

bool SchemaMerger::matches_any(const Json& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const Json& pattern) {
    return pattern_texts(pattern.get_ref<const std::string&>()).accepts(name);
  });
}

}  // namespace sluice
