// A small judge of JSON Schema: the words that the published description uses.
//
// Used by the tests of that description. Thread rule: free functions.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "server/api/openapi.h"

namespace sluice::api {

inline bool is_type(const Json& type, const Json& value) {
  return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
         (type == "integer" && value.is_number_integer()) ||
         (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
         (type == "array" && value.is_array()) || (type == "object" && value.is_object());
}

inline bool is_valid(const Json& schema, const Json& value);

// Of one word of JSON Schema; those that say nothing of a value that is no object hold.
// `listed`: the members that its schema names.
inline bool holds(const std::string& word, const Json& rule, const Json& value,
                  const Json& listed) {
  const auto fits = [&](const Json& one) { return is_valid(one, value); };
  const auto size = value.is_string() ? value.get_ref<const std::string&>().size() : value.size();
  if (word == "type" && rule.is_string()) return is_type(rule, value);
  if (word == "type") {
    return std::ranges::any_of(rule, [&](const Json& type) { return is_type(type, value); });
  }
  if (word == "const") return rule == value;
  if (word == "not") return !fits(rule);
  if (word == "allOf") return std::ranges::all_of(rule, fits);
  if (word == "oneOf") return std::ranges::count_if(rule, fits) == 1;
  if (word == "required") {
    return !value.is_object() || std::ranges::all_of(rule, [&](const Json& name) {
      return value.contains(name.get<std::string>());
    });
  }
  if (word == "properties") {
    if (!value.is_object()) return true;
    for (const auto& [name, member] : value.items()) {
      if (rule.contains(name) && !is_valid(rule.at(name), member)) return false;
    }
    return true;
  }
  if (word == "additionalProperties" && rule.is_object()) {
    if (!value.is_object()) return true;
    for (const auto& [name, member] : value.items()) {
      if (!listed.contains(name) && !is_valid(rule, member)) return false;
    }
    return true;
  }
  if (word == "enum") return std::ranges::count(rule, value) > 0;
  if (word == "anyOf") return std::ranges::any_of(rule, fits);
  if (word == "minimum") return !value.is_number() || value >= rule;
  if (word == "exclusiveMinimum") return !value.is_number() || value > rule;
  if (word == "maximum") return !value.is_number() || value <= rule;
  if (word == "minLength") return !value.is_string() || size >= rule.get<size_t>();
  if (word == "maxLength") return !value.is_string() || size <= rule.get<size_t>();
  if (word == "minItems") return !value.is_array() || size >= rule.get<size_t>();
  if (word == "maxProperties") return !value.is_object() || size <= rule.get<size_t>();
  if (word == "maxItems") return !value.is_array() || size <= rule.get<size_t>();
  if (word == "items") {
    return !value.is_array() ||
           std::ranges::all_of(value, [&](const Json& item) { return is_valid(rule, item); });
  }
  static const std::set<std::string> kNotNeeded = {"description", "pattern", "propertyNames",
                                                   "additionalProperties"};
  EXPECT_TRUE(kNotNeeded.contains(word)) << word;
  return true;
}

inline bool is_valid(const Json& schema, const Json& value) {
  for (const auto& [word, rule] : schema.items()) {
    if (!holds(word, rule, value, schema.value("properties", Json::object()))) return false;
  }
  return true;
}

}  // namespace sluice::api
