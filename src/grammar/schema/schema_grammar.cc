// Choices, references and types; other files write the values of a type.
#include "grammar/schema/schema_grammar.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/schema/schema_gate.h"
#include "grammar/schema/schema_limits.h"
#include "grammar/schema/schema_rules.h"
#include "io/json.h"

namespace sluice {
namespace {

constexpr size_t kMaxRules = 20'000;
constexpr int kMaxDepth = 256;
constexpr size_t kMaxKeyBytes = 64 << 20;  // of the texts by which schemas are known

// What a caller sends is no file of a model: another class of error.
Json parse_schema(std::string_view text) {
  try {
    return parse_ordered_json(text, "schema");
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, "schema: " + error.message());
  }
}

}  // namespace

// The gate first, so that nothing behind it has to look at what a keyword has for a value.
std::string schema_grammar(std::string_view text, Refusals& refusals,
                           const ParameterForm* parameters) {
  Json root = parse_schema(text);
  check_schema(root, refusals);
  // A schema within itself is referred to before it is known whether any value satisfies it. Once
  // one turns out to be empty, all is written again with this knowledge.
  std::set<std::string> empty;
  while (true) {
    if (auto rules = SchemaRules(root, refusals, empty, parameters).write())
      return *std::move(rules);
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
  if (flat == Json(true) || flat.empty()) return any_value();
  const std::string key = key_of(flat);
  const auto known = made_.find(key);
  if (known != made_.end()) return known_rule(known->second, pointer);
  key_bytes_ += key.size();
  if (made_.size() > kMaxRules || value_depth_ > kMaxDepth || key_bytes_ > kMaxKeyBytes) {
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

// A flat schema with constraints. Listed values are compared with all of them. Otherwise one list
// of choices after another is merged with what stands beside it.
SchemaRules::Expression SchemaRules::constrained(const Json& flat, const std::string& pointer) {
  if (flat.contains("enum")) {
    const Json values = values_of(merger_, flat, pointer).value();
    if (place_ == Place::kArguments) {
      Refusals::fail_at(pointer, "enum",
                        "of all arguments is not supported in calls of this model");
    }
    return literals_of(values);
  }
  if (const auto choices = choices_of(flat, pointer)) return any_choice(*choices, pointer);
  return typed_value(flat, pointer);
}

// The schemas of the first list, each with all that stands beside it; empty without a list.
std::optional<std::vector<Json>> SchemaRules::choices_of(const Json& flat,
                                                         const std::string& pointer) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto lists = flat.find(keyword);
    if (lists == flat.end()) continue;
    const Json list = lists->front();
    Json rest = flat;
    rest[keyword].erase(0);
    if (rest[keyword].empty()) rest.erase(keyword);
    std::vector<Json> merged;
    for (const Json& choice : list) merged.push_back(merger_.both(rest, choice, pointer));
    if (keyword[0] == 'o') keep_one(list, merged, pointer);
    return merged;
  }
  return std::nullopt;
}

// oneOf is anyOf where no two choices overlap; where they do, each without the other.
void SchemaRules::keep_one(const Json& list, std::vector<Json>& merged,
                           const std::string& pointer) {
  const std::vector<Json> all = merged;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (are_disjoint(merger_, all[j], all[i], pointer)) continue;
      // The opposite of the choice as it was written: what stands beside it holds anyway.
      const auto exclude = [&](size_t from, size_t other) {
        const Json opposite = Json::object({{"not", list[other]}});
        merged[from] = merger_.both(merged[from], opposite, pointer);
      };
      exclude(i, j);
      exclude(j, i);
    }
  }
}

SchemaRules::Expression SchemaRules::any_choice(const std::vector<Json>& schemas,
                                                const std::string& pointer) {
  std::vector<std::string> alternatives;
  for (const Json& schema : schemas) {
    if (is_plainly_empty(merger_, schema, pointer)) continue;
    const Expression value = value_of(schema, pointer);
    // Equal schemas have one rule.
    const bool is_new = value && std::ranges::find(alternatives, *value) == alternatives.end();
    if (is_new) alternatives.push_back(*value);
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
  if ((types & (kNullType | kBooleanType)) != 0) {
    Json few = flat;
    few["type"] = type_names(types & (kNullType | kBooleanType));
    add(kAllTypes, literals_of(values_of(merger_, few, pointer).value()));
  }
  const unsigned numbers = types & (kIntegerType | kFractionType);
  if (numbers != 0) add(numbers, number_of(flat, numbers));
  if ((types & kStringType) != 0) add(kStringType, string_of(flat, pointer));
  ++level_;
  const Place place = place_;
  if (place == Place::kParameter) place_ = Place::kDocument;
  if ((types & kArrayType) != 0) add(kArrayType, array_of(flat, pointer));
  if ((types & kObjectType) != 0) add(kObjectType, object_of(flat, pointer));
  place_ = place;
  --level_;
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

}  // namespace sluice
