// Choices, references and types; schema_values.cc writes the values of a type.
#include "grammar/schema/schema_grammar.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/schema/schema_gate.h"
#include "grammar/schema/schema_rules.h"
#include "io/json.h"

namespace sluice {
namespace {

constexpr size_t kMaxRules = 20'000;
constexpr int kMaxDepth = 256;

// What a caller sends is no file of a model: another class of error.
Json parse_schema(std::string_view text) {
  try {
    return parse_ordered_json(text, "schema");
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, "schema: " + error.message());
  }
}

}  // namespace

std::string schema_grammar(std::string_view text, Refusals& refusals) {
  Json root = parse_schema(text);
  check_schema(root, refusals);
  // A schema within itself is referred to before it is known whether any value satisfies it. Once
  // one turns out to be empty, all is written again with this knowledge.
  std::set<std::string> empty;
  while (true) {
    if (auto rules = SchemaRules(root, refusals, empty).write()) return *std::move(rules);
  }
}

// The root first: what it needs adds itself.
std::optional<std::string> SchemaRules::write() && {
  const size_t num_empty = empty_.size();
  const Expression value = value_of(root_, "");
  if (!value) {
    fail(ErrorCode::kInvalidArgument, "schema: no value satisfies it");
  }
  if (empty_.size() > num_empty) return std::nullopt;
  rules_.set("root", *value);
  add_basic_rules();
  return std::move(rules_).finish();
}

// Schemas that ask for the same have one rule, which also makes those that contain themselves end.
SchemaRules::Expression SchemaRules::value_of(const Json& schema, const std::string& pointer) {
  const Json flat = merger_.flat(schema, pointer);
  if (flat == Json(false)) return std::nullopt;
  if (flat == Json(true) || flat.empty()) return "json_value";
  const std::string key = flat.dump();
  const auto known = made_.find(key);
  if (known != made_.end()) return known_rule(known->second, pointer);
  if (made_.size() > kMaxRules || value_depth_ > kMaxDepth) {
    fail(ErrorCode::kInvalidArgument,
         "schema: it has more than {} parts, or parts that are nested "
         "deeper than {}; give a smaller one",
         kMaxRules, kMaxDepth);
  }
  if (empty_.contains(key)) return std::nullopt;
  Rule& rule = made_[key];
  rule = {.name = rules_.new_name("value"), .level = level_, .is_open = true};
  ++value_depth_;
  const Expression body = constrained(flat, pointer);
  --value_depth_;
  rule.is_open = false;
  rule.is_empty = !body;
  if (!body) {
    if (rule.is_used_open) empty_.insert(key);
    return std::nullopt;
  }
  rules_.set(rule.name, *body);
  return rule.name;
}

// A rule that is still written may be used within a value of its own; at the same place it would
// have to be itself.
SchemaRules::Expression SchemaRules::known_rule(Rule& rule, const std::string& pointer) const {
  if (rule.is_empty) return std::nullopt;
  if (rule.is_open && rule.level == level_) {
    Refusals::fail_at(pointer, "$ref", "leads to itself without end");
  }
  rule.is_used_open = rule.is_used_open || rule.is_open;
  return rule.name;
}

// A flat schema with constraints.
SchemaRules::Expression SchemaRules::constrained(const Json& flat, const std::string& pointer) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto choices = flat.find(keyword);
    if (choices == flat.end()) continue;
    Json rest = flat;
    rest.erase(keyword);
    return choice_of(*choices, rest, keyword, pointer);
  }
  const auto values = flat.find("enum");
  if (values != flat.end()) return listed_value(flat, *values, pointer);
  return typed_value(flat, pointer);
}

// Each choice with what stands beside the keyword; oneOf is anyOf where no two choices overlap.
SchemaRules::Expression SchemaRules::choice_of(const Json& choices, const Json& rest,
                                               const char* keyword, const std::string& pointer) {
  std::vector<Json> merged;
  for (const Json& choice : choices) merged.push_back(merger_.both(rest, choice, pointer));
  const bool is_one = std::string_view(keyword) == "oneOf";
  for (size_t i = 0; is_one && i < merged.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (are_disjoint(merger_, merged[j], merged[i], pointer)) continue;
      refusals_.refuse(pointer, "oneOf",
                       fmt::format("is not supported where a value may satisfy several of its "
                                   "schemas, as {} and {}; use "
                                   "anyOf, or a property with a different const in each",
                                   j, i));
    }
  }
  std::vector<std::string> alternatives;
  for (const Json& schema : merged) {
    if (const Expression value = value_of(schema, pointer)) alternatives.push_back(*value);
  }
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

// Each type with the keywords that are about it.
SchemaRules::Expression SchemaRules::typed_value(const Json& flat, const std::string& pointer) {
  const unsigned types = types_of(flat);
  std::vector<std::string> alternatives;
  const auto add = [&](unsigned type, const Expression& value) {
    if ((types & type) != 0 && value) alternatives.push_back(*value);
  };
  add(kNullType, R"("null")");
  add(kBooleanType, R"(("true" | "false"))");
  if ((types & (kIntegerType | kFractionType)) != 0) {
    add(kIntegerType, number_of(flat, (types & kFractionType) == 0));
  }
  if ((types & kStringType) != 0) add(kStringType, string_of(flat));
  ++level_;
  if ((types & kArrayType) != 0) add(kArrayType, array_of(flat, pointer));
  if ((types & kObjectType) != 0) add(kObjectType, object_of(flat, pointer));
  --level_;
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

}  // namespace sluice
