// Keyword by keyword; those of objects and of lists depend on each other and are merged together.
#include "grammar/schema/schema_merge.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int kMaxMergeDepth = 64;
constexpr size_t kMaxChoices = 256;

// What flat schemas keep.
constexpr std::array<std::string_view, 21> kConstraints = {"type",
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
                                                           "exclusiveMinimum",
                                                           "exclusiveMaximum",
                                                           "propertyNames",
                                                           "const",
                                                           "$ref"};
constexpr std::array<std::string_view, 3> kOfObjects = {"properties", "patternProperties",
                                                        "additionalProperties"};
constexpr std::array<std::string_view, 2> kOfArrays = {"prefixItems", "items"};

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

// A copy without annotations, in the form of flat schemas but for what `flat` resolves.
Json normal(const Json& schema) {
  Json result = Json::object();
  copy(schema, kConstraints, result);
  copy(schema, kOfObjects, result);
  copy(schema, kOfArrays, result);
  if (result.contains("pattern") && result["pattern"].is_string()) {
    result["pattern"] = Json::array({result["pattern"]});
  }
  return result;
}

// Both must hold; the caller has put "enum" into `schema` if it had none.
void keep_values(Json& schema, const Json& values) {
  Json kept = Json::array();
  for (const Json& value : schema["enum"]) {
    if (has_value(values, value)) kept.push_back(value);
  }
  schema["enum"] = std::move(kept);
}

}  // namespace

Json SchemaMerger::rest_of(const Json& schema, const char* keyword) {
  const auto it = schema.find(keyword);
  return it == schema.end() ? Json(true) : *it;
}

// Not merged yet, so that schemas that contain themselves end.
Json SchemaMerger::pair_of(const Json& a, const Json& b) {
  if (a == Json(true) || a == b) return b;
  if (b == Json(true)) return a;
  return Json::object({{"allOf", Json::array({a, b})}});
}

// What stands beside $ref and allOf counts as one more part of them, as in draft 2020-12.
Json SchemaMerger::flat(const Json& schema, std::string_view pointer) {
  if (schema.is_boolean()) return schema;
  if (++depth_ > kMaxMergeDepth) {
    Refusals::fail_at(pointer, "$ref", "leads to itself without end");
  }
  Json all = normal(schema);
  const auto constant = all.find("const");
  if (constant != all.end()) {
    const Json values = Json::array({*constant});
    all.erase("const");
    if (!all.contains("enum")) all["enum"] = values;
    keep_values(all, values);
  }
  const auto ref = all.find("$ref");
  if (ref != all.end()) {
    const std::string name = ref->get<std::string>();
    all.erase("$ref");
    merge_into(all, flat_ref(name), pointer);
  }
  const auto parts = schema.find("allOf");
  if (parts != schema.end()) {
    for (const Json& part : *parts) merge_into(all, flat(part, pointer), pointer);
  }
  --depth_;
  return all;
}

// References that ask for each other several times would otherwise take a time that doubles with
// each of them.
const Json& SchemaMerger::flat_ref(const std::string& ref) {
  const auto known = flat_refs_.find(ref);
  if (known != flat_refs_.end()) return known->second;
  Json made = flat(*find_ref(root_, ref), ref.substr(1));
  return flat_refs_.emplace(ref, std::move(made)).first->second;
}

Json SchemaMerger::both(const Json& a, const Json& b, std::string_view pointer) {
  Json all = flat(a, pointer);
  merge_into(all, flat(b, pointer), pointer);
  return all;
}

// Keywords that only one of them has are taken as they are.
void SchemaMerger::merge_into(Json& all, const Json& other, std::string_view pointer) {
  if (all == Json(false) || other == Json(true)) return;
  if (all == Json(true) || other == Json(false)) {
    all = other;
    return;
  }
  const bool has_patterns =
      all.contains("patternProperties") || other.contains("patternProperties");
  if (has_any(all, kOfObjects) && has_any(other, kOfObjects)) {
    if (has_patterns) {
      refusals_.refuse(pointer, "patternProperties", "in several parts is not supported");
    }
    merge_objects(all, other, pointer);
  } else {
    copy(other, kOfObjects, all);
  }
  if (has_any(all, kOfArrays) && has_any(other, kOfArrays)) {
    merge_arrays(all, other, pointer);
  } else {
    copy(other, kOfArrays, all);
  }
  for (auto it = other.begin(); it != other.end(); ++it) {
    const auto is_it = [&](std::string_view key) { return key == it.key(); };
    if (std::ranges::any_of(kOfObjects, is_it) || std::ranges::any_of(kOfArrays, is_it)) continue;
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
  } else if (key == "anyOf" || key == "oneOf") {
    merge_choices(value, other, pointer);
  } else if (key == "pattern") {
    value.insert(value.end(), other.begin(), other.end());
  } else if (key == "required") {
    value.insert(value.end(), other.begin(), other.end());
  } else if (key == "propertyNames") {
    value = pair_of(value, other);
  } else if (key == "multipleOf") {
    value = std::lcm(value.get<int64_t>(), other.get<int64_t>());
  } else if (is_min || key.starts_with("max") || key == "exclusiveMaximum") {
    const bool is_tighter = is_min ? other > value : other < value;
    if (is_tighter) value = other;
  } else {
    refusals_.refuse(pointer, key, "differs between parts, which is not supported");
  }
}

// A name has to satisfy what each part says of it.
void SchemaMerger::merge_objects(Json& all, const Json& other, std::string_view /*pointer*/) {
  const auto of = [](const Json& schema, const std::string& name) {
    const auto properties = schema.find("properties");
    const bool has = properties != schema.end() && properties->contains(name);
    return has ? (*properties)[name] : rest_of(schema, "additionalProperties");
  };
  Json merged = Json::object();
  for (const Json* schema : {&std::as_const(all), &other}) {
    const auto properties = schema->find("properties");
    if (properties == schema->end()) continue;
    for (auto it = properties->begin(); it != properties->end(); ++it) {
      if (!merged.contains(it.key()))
        merged[it.key()] = pair_of(of(all, it.key()), of(other, it.key()));
    }
  }
  const Json rest =
      pair_of(rest_of(all, "additionalProperties"), rest_of(other, "additionalProperties"));
  all["properties"] = std::move(merged);
  all["additionalProperties"] = rest;
}

// The same by position: what follows the shorter prefix is its `items`.
void SchemaMerger::merge_arrays(Json& all, const Json& other, std::string_view /*pointer*/) {
  static const Json kNone = Json::array();
  const auto prefix = [](const Json& schema) -> const Json& {
    const auto it = schema.find("prefixItems");
    return it == schema.end() ? kNone : *it;
  };
  const auto of = [&](const Json& schema, size_t index) {
    return index < prefix(schema).size() ? prefix(schema)[index] : rest_of(schema, "items");
  };
  Json merged = Json::array();
  const size_t count = std::max(prefix(all).size(), prefix(other).size());
  for (size_t i = 0; i < count; ++i) merged.push_back(pair_of(of(all, i), of(other, i)));
  const Json rest = pair_of(rest_of(all, "items"), rest_of(other, "items"));
  if (!merged.empty()) all["prefixItems"] = std::move(merged);
  all["items"] = rest;
}

// Each choice of one with each of the other.
void SchemaMerger::merge_choices(Json& value, const Json& other, std::string_view pointer) {
  if (value.size() * other.size() > kMaxChoices) {
    Refusals::fail_at(pointer, "anyOf", "has too many choices in several parts");
  }
  Json pairs = Json::array();
  for (const Json& a : value) {
    for (const Json& b : other) pairs.push_back(pair_of(a, b));
  }
  value = std::move(pairs);
}

}  // namespace sluice
