// Of a flat schema, whose constraints must all hold, one of the constraints does not hold.
#include "grammar/schema/schema_opposite.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr size_t kMaxOneOf = 16;  // of which each pair is a way

Json all_of(Json parts) { return Json::object({{"allOf", std::move(parts)}}); }
Json any_of(Json parts) {
  if (parts.empty()) return false;
  return parts.size() == 1 ? Json(parts[0]) : Json::object({{"anyOf", std::move(parts)}});
}
Json typed(const char* type, Json constraints) {
  constraints["type"] = type;
  return constraints;
}

// Arrays with exactly one item that differs, and the like.
Json opposite_of_value(const Json& value) {
  if (!value.is_structured()) return Json::object({{"%notEnum", Json::array({value})}});
  const auto size = static_cast<int64_t>(value.size());
  Json ways = Json::array();
  const bool is_array = value.is_array();
  ways.push_back({{"type", type_names(kAllTypes & ~(is_array ? kArrayType : kObjectType))}});
  if (is_array) {
    if (size > 0) ways.push_back(typed("array", {{"maxItems", size - 1}}));
    ways.push_back(typed("array", {{"minItems", size + 1}}));
    Json prefix = Json::array();
    for (const Json& item : value) {
      prefix.push_back(opposite_of_value(item));
      ways.push_back(typed("array", {{"minItems", prefix.size()}, {"prefixItems", prefix}}));
      prefix.back() = true;
    }
    return any_of(std::move(ways));
  }
  Json names = Json::array();
  for (auto it = value.begin(); it != value.end(); ++it) {
    names.push_back(it.key());
    ways.push_back(typed("object", {{"properties", {{it.key(), false}}}}));
    ways.push_back(typed("object", {{"required", Json::array({it.key()})},
                                    {"properties", {{it.key(), opposite_of_value(it.value())}}}}));
  }
  ways.push_back(typed("object", {{"required", names}, {"minProperties", size + 1}}));
  return any_of(std::move(ways));
}

// The ways in which one constraint does not hold.
//
// {"minLength": 3, "pattern": "^a"} is not satisfied by a text of at most 2 characters, or by one
// without the pattern; other types satisfy both. So each way names the type that it is about.
class Opposite {
 public:
  // False if the constraint cannot be written the other way round.
  bool add(const std::string& key, const Json& value, const Json& flat);
  Json result() && { return any_of(std::move(ways_)); }

 private:
  // A keyword whose opposite is another one, with the same or the next value. `step` is what a
  // count changes by; 0 is for bounds of numbers, which become exclusive or inclusive.
  struct Limit {
    std::string_view keyword;
    const char* type;
    const char* opposite;
    int64_t step;
  };
  static constexpr std::array kLimits = {
      Limit{"minimum", "number", "exclusiveMaximum", 0},
      Limit{"maximum", "number", "exclusiveMinimum", 0},
      Limit{"exclusiveMinimum", "number", "maximum", 0},
      Limit{"exclusiveMaximum", "number", "minimum", 0},
      Limit{"minLength", "string", "maxLength", -1},
      Limit{"maxLength", "string", "minLength", 1},
      Limit{"minItems", "array", "maxItems", -1},
      Limit{"maxItems", "array", "minItems", 1},
      Limit{"minProperties", "object", "maxProperties", -1},
      Limit{"maxProperties", "object", "minProperties", 1},
  };

  void add_way(Json way) { ways_.push_back(std::move(way)); }
  bool add_limit(const std::string& key, const Json& value);
  bool add_values(const std::string& key, const Json& value);
  bool add_of_texts(const std::string& key, const Json& value);
  bool add_choices(const std::string& key, const Json& lists);
  bool add_of_objects(const std::string& key, const Json& value);
  bool add_of_arrays(const std::string& key, const Json& value, const Json& flat);

  Json ways_ = Json::array();
};

// Each kind of keyword looks whether it is its own.
bool Opposite::add(const std::string& key, const Json& value, const Json& flat) {
  if (key == "type") {
    const unsigned types = kAllTypes & ~types_of(flat);
    if (types != 0) add_way({{"type", type_names(types)}});
    return true;
  }
  return add_limit(key, value) || add_values(key, value) || add_of_texts(key, value) ||
         add_choices(key, value) || add_of_objects(key, value) || add_of_arrays(key, value, flat);
}

// Numbers change from inclusive to exclusive, counts by one. Every count is at least 0.
bool Opposite::add_limit(const std::string& key, const Json& value) {
  for (const Limit& limit : kLimits) {
    if (limit.keyword != key) continue;
    if (limit.step == 0) {
      add_way(typed(limit.type, {{limit.opposite, value}}));
    } else if (limit.step > 0 || value.get<double>() > 0) {
      const auto count = static_cast<int64_t>(std::min(value.get<double>(), 1e15));
      add_way(typed(limit.type, {{limit.opposite, count + limit.step}}));
    }
    return true;
  }
  return false;
}

// None of several values: scalars together, of which texts and numbers become automata, and each
// array or object by its parts.
bool Opposite::add_values(const std::string& key, const Json& value) {
  if (key == "%notEnum") {
    add_way({{"enum", value}});
    return true;
  }
  if (key != "enum") return false;
  Json all = Json::array();
  Json scalars = Json::array();
  for (const Json& one : value) {
    if (one.is_structured()) {
      all.push_back(opposite_of_value(one));
    } else {
      scalars.push_back(one);
    }
  }
  if (!scalars.empty()) all.push_back({{"%notEnum", std::move(scalars)}});
  add_way(all_of(std::move(all)));
  return true;
}

// One of several texts or numbers, each the other way round.
bool Opposite::add_of_texts(const std::string& key, const Json& value) {
  if (key != "pattern" && key != "format" && key != "multipleOf") return false;
  for (const Json& one : value) {
    const Json turned = one.is_array() ? one[1] : Json::array({"not", one});
    add_way(typed(key == "multipleOf" ? "number" : "string", {{key, Json::array({turned})}}));
  }
  return true;
}

// None of the schemas of a list; of oneOf also two of them.
bool Opposite::add_choices(const std::string& key, const Json& lists) {
  if (key != "anyOf" && key != "oneOf") return false;
  for (const Json& list : lists) {
    Json none = Json::array();
    for (const Json& schema : list) none.push_back(opposite(schema));
    add_way(all_of(std::move(none)));
    if (key == "anyOf") continue;
    // None of them, as for anyOf, or any two.
    if (list.size() > kMaxOneOf) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      for (size_t j = 0; j < i; ++j) add_way(pair_of(list[j], list[i]));
    }
  }
  return true;
}

// A required property is absent, or one that is there has another value. What is said of names that
// no one lists is left out: that some of them has a value cannot be enforced, since a later one of
// the same name would replace it.
bool Opposite::add_of_objects(const std::string& key, const Json& value) {
  if (key == "required") {
    for (const Json& name : value) {
      add_way(typed("object", {{"properties", {{name.get<std::string>(), false}}}}));
    }
    return true;
  }
  if (key == "properties") {
    for (auto it = value.begin(); it != value.end(); ++it) {
      if (it.value() == Json(true) || it->empty()) continue;
      add_way(typed("object", {{"required", Json::array({it.key()})},
                               {"properties", {{it.key(), opposite(it.value())}}}}));
    }
    return true;
  }
  if (key != "patternProperties") return false;
  return std::ranges::all_of(value, [](const Json& schema) { return schema == Json(true); });
}

// Some item differs: one of the prefix by its position, and of the others at least one, wherever it
// is. Counts of contains end below what is asked, or above.
bool Opposite::add_of_arrays(const std::string& key, const Json& value, const Json& flat) {
  if (key == "prefixItems") {
    Json prefix = Json::array();
    for (const Json& item : value) {
      prefix.push_back(opposite(item));
      add_way(typed("array", {{"minItems", prefix.size()}, {"prefixItems", prefix}}));
      prefix.back() = true;
    }
    return true;
  }
  const auto add_contains = [&](Json entry) {
    add_way(typed("array", {{"%contains", Json::array({std::move(entry)})}}));
  };
  if (key == "items") {
    const size_t from = flat.contains("prefixItems") ? flat["prefixItems"].size() : 0;
    add_contains({{"schema", opposite(value)}, {"min", 1}, {"from", from}});
    return true;
  }
  if (key != "%contains") return false;
  for (const Json& entry : value) {
    const double min = entry["min"].get<double>();
    Json other = {{"schema", entry["schema"]}, {"min", 0}, {"from", entry["from"]}};
    // Fewer than are asked for.
    if (min > 0) {
      other["max"] = static_cast<int64_t>(min) - 1;
      add_contains(other);
      other.erase("max");
    }
    // More than are allowed.
    if (!entry.contains("max")) continue;
    other["min"] = static_cast<int64_t>(entry["max"].get<double>()) + 1;
    add_contains(std::move(other));
  }
  return true;
}

}  // namespace

Json opposite(const Json& schema) {
  if (schema.is_boolean()) return !schema.get<bool>();
  return Json::object({{"not", schema}});
}

// A flat schema is enough: its lists of choices and its parts are turned when they are looked at.
Json opposite_of(SchemaMerger& merger, const Json& schema, std::string_view pointer) {
  const Json flat = merger.flat(schema, pointer);
  if (flat.is_boolean()) return !flat.get<bool>();
  Opposite result;
  for (auto it = flat.begin(); it != flat.end(); ++it) {
    if (result.add(it.key(), it.value(), flat)) continue;
    const std::string keyword = it.key() == "%others" ? "additionalProperties" : it.key();
    merger.refusals().refuse(pointer, keyword,
                             "is not supported below not and if, and in a oneOf whose schemas "
                             "overlap");
    return true;
  }
  return std::move(result).result();
}

}  // namespace sluice
