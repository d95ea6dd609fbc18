// Each keyword becomes a choice of what holds with the condition and what holds without.
#include "grammar/schema/schema_conditions.h"

#include <string>
#include <utility>

#include "grammar/schema/schema_opposite.h"
#include "grammar/schema/schema_unevaluated.h"

namespace sluice {
namespace {

Json choice(Json a, Json b) {
  return Json::object({{"anyOf", Json::array({std::move(a), std::move(b)})}});
}

Json part_or_true(const Json& schema, const char* keyword) {
  const auto it = schema.find(keyword);
  return it == schema.end() ? Json(true) : *it;
}

// "if" alone asks for nothing.
void add_if(const Json& schema, std::vector<Json>& result) {
  const auto condition = schema.find("if");
  if (condition == schema.end()) return;
  const Json then = part_or_true(schema, "then");
  const Json otherwise = part_or_true(schema, "else");
  if (then == Json(true) && otherwise == Json(true)) return;
  result.push_back(choice(pair_of(*condition, then), pair_of(opposite(*condition), otherwise)));
}

// Without the property, or with what depends on it.
void add_dependent(const Json& schema, std::vector<Json>& result) {
  const auto add = [&](const std::string& name, const Json& dependent) {
    const Json absent = Json::object({{"properties", Json::object({{name, false}})}});
    result.push_back(dependent == Json(false) ? absent : choice(absent, dependent));
  };
  const auto names = schema.find("dependentRequired");
  if (names != schema.end()) {
    for (auto it = names->begin(); it != names->end(); ++it) {
      if (!it->empty()) add(it.key(), Json::object({{"required", it.value()}}));
    }
  }
  const auto schemas = schema.find("dependentSchemas");
  if (schemas == schema.end()) return;
  for (auto it = schemas->begin(); it != schemas->end(); ++it) {
    if (it.value() != Json(true)) add(it.key(), it.value());
  }
}

}  // namespace

std::vector<Json> conditions_of(SchemaMerger& merger, const Json& schema,
                                std::string_view pointer) {
  std::vector<Json> result;
  const auto forbidden = schema.find("not");
  if (forbidden != schema.end()) result.push_back(opposite_of(merger, *forbidden, pointer));
  add_if(schema, result);
  add_dependent(schema, result);
  for (const char* keyword : {"unevaluatedProperties", "unevaluatedItems"}) {
    if (schema.contains(keyword)) result.push_back(unevaluated(merger, schema, keyword, pointer));
  }
  return result;
}

}  // namespace sluice
