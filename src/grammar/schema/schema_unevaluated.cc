// {"anyOf": [A, B], "unevaluatedProperties": false}: either A holds and the names are those of A,
// or B and those of B, or both and those of both.
//
// The more is evaluated, the more is allowed. So it is enough that among the cases of a document is
// the one in which all is evaluated that really is; others, with less, allow nothing more.
#include "grammar/schema/schema_unevaluated.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr size_t kMaxCases = 256;         // each is a choice of the grammar
constexpr int kMaxUnevaluatedDepth = 64;  // references and parts within each other

// Of properties or of items, by what is asked.
struct Case {
  Json conditions = Json::array();  // must hold
  bool has_all = false;             // all is evaluated
  Json names = Json::object();      // of properties
  Json patterns = Json::object();   // of properties
  size_t num_items = 0;             // from the first on
  Json contained = Json::array();   // items that satisfy one of these

  bool is_nothing() const {
    return !has_all && names.empty() && patterns.empty() && num_items == 0 && contained.empty();
  }
};
using Cases = std::vector<Case>;

// What either evaluates, where both hold.
Case joined(Case a, const Case& b) {
  unite(a.conditions, b.conditions);
  a.has_all = a.has_all || b.has_all;
  a.names.update(b.names);
  a.patterns.update(b.patterns);
  a.num_items = std::max(a.num_items, b.num_items);
  unite(a.contained, b.contained);
  return a;
}

class Evaluation {
 public:
  Evaluation(SchemaMerger& merger, bool is_of_items, std::string_view pointer)
      : merger_(merger), is_of_items_(is_of_items), pointer_(pointer) {}

  // `is_outer`: the schema whose keyword is written.
  Cases cases_of(const Json& schema, bool is_outer);

 private:
  Case own_of(const Json& schema, bool is_outer) const;
  void refine(Cases& cases, const Cases& others);
  Cases conditional(const Json& schema, const Json& condition);
  void add_choices(const Json& list, bool is_one, Cases& cases);
  void add_if(const Json& schema, Cases& cases);
  static bool has_nothing(const Cases& cases) {
    return std::ranges::all_of(cases, &Case::is_nothing);
  }

  SchemaMerger& merger_;
  const bool is_of_items_;
  std::string_view pointer_;
  int depth_ = 0;
};

// What the schema's own keywords evaluate.
Case Evaluation::own_of(const Json& schema, bool is_outer) const {
  Case own;
  const auto names_in = [&](const char* keyword, Json& names) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) return;
    for (auto entry = it->begin(); entry != it->end(); ++entry) names[entry.key()] = true;
  };
  if (is_of_items_) {
    own.has_all = schema.contains("items") || (!is_outer && schema.contains("unevaluatedItems"));
    if (schema.contains("prefixItems")) own.num_items = schema["prefixItems"].size();
    if (schema.contains("contains")) own.contained.push_back(schema["contains"]);
    return own;
  }
  own.has_all = schema.contains("additionalProperties") ||
                (!is_outer && schema.contains("unevaluatedProperties"));
  names_in("properties", own.names);
  names_in("patternProperties", own.patterns);
  return own;
}

// Each case with each of the others.
void Evaluation::refine(Cases& cases, const Cases& others) {
  if (cases.size() * others.size() > kMaxCases) {
    Refusals::fail_at(pointer_, is_of_items_ ? "unevaluatedItems" : "unevaluatedProperties",
                      "has too many choices beside it");
  }
  Cases result;
  for (const Case& one : cases) {
    for (const Case& other : others) result.push_back(joined(one, other));
  }
  cases = std::move(result);
}

// The cases of a schema that holds only if `condition` does.
Cases Evaluation::conditional(const Json& schema, const Json& condition) {
  Cases cases = cases_of(schema, false);
  if (has_nothing(cases)) return {Case{}};
  Case holds;
  holds.conditions.push_back(condition);
  refine(cases, {holds});
  return cases;
}

// Of anyOf any number of schemas that evaluate something, of oneOf one; none of them only if there
// are others that may hold instead.
void Evaluation::add_choices(const Json& list, bool is_one, Cases& cases) {
  Cases chosen;
  bool may_be_none = false;
  Cases sets = {Case{}};
  for (const Json& schema : list) {
    Cases with = conditional(schema, schema);
    if (has_nothing(with)) {
      may_be_none = true;
      continue;
    }
    chosen.insert(chosen.end(), with.begin(), with.end());
    // Of anyOf also together with others, or not at all.
    if (is_one) continue;
    with.insert(with.begin(), Case{});
    refine(sets, with);
  }
  // The first one is the empty set.
  if (!is_one) chosen.assign(sets.begin() + 1, sets.end());
  if (may_be_none || chosen.empty()) chosen.emplace_back();
  refine(cases, chosen);
}

// What "else" evaluates counts only where "if" does not hold.
void Evaluation::add_if(const Json& schema, Cases& cases) {
  const auto condition = schema.find("if");
  if (condition == schema.end()) return;
  Cases holds = cases_of(*condition, false);
  if (schema.contains("then")) refine(holds, cases_of(schema["then"], false));
  if (has_nothing(holds)) {
    holds = {Case{}};
  } else {
    Case asked;
    asked.conditions.push_back(*condition);
    refine(holds, {asked});
  }
  Cases otherwise = {Case{}};
  if (schema.contains("else")) {
    otherwise = conditional(schema["else"], Json::object({{"not", *condition}}));
  }
  holds.insert(holds.end(), otherwise.begin(), otherwise.end());
  refine(cases, holds);
}

// Keywords that look at the same value, one after another; what looks at parts of it evaluates
// nothing here.
Cases Evaluation::cases_of(const Json& schema, bool is_outer) {
  if (schema.is_boolean()) return {Case{}};
  if (++depth_ > kMaxUnevaluatedDepth) {
    Refusals::fail_at(pointer_, "$ref", "leads to itself without end");
  }
  Cases cases = {own_of(schema, is_outer)};
  for (const char* keyword : {"$ref", "$dynamicRef"}) {
    if (schema.contains(keyword))
      refine(cases, cases_of(merger_.target_of(schema[keyword]), false));
  }
  if (schema.contains("allOf")) {
    for (const Json& part : schema["allOf"]) refine(cases, cases_of(part, false));
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const bool is_one = keyword[0] == 'o';
    if (schema.contains(keyword)) add_choices(schema[keyword], is_one, cases);
  }
  add_if(schema, cases);
  if (schema.contains("dependentSchemas")) {
    const Json& dependent = schema["dependentSchemas"];
    for (auto it = dependent.begin(); it != dependent.end(); ++it) {
      const Json present = {{"type", "object"}, {"required", Json::array({it.key()})}};
      Cases with = conditional(it.value(), present);
      if (has_nothing(with)) continue;
      // Or the property is absent.
      with.emplace_back();
      refine(cases, with);
    }
  }
  --depth_;
  return cases;
}

// All but what is evaluated satisfies `rest`.
Json closed(const Case& evaluated, const Json& rest, bool is_of_items) {
  Json all = evaluated.conditions;
  if (evaluated.has_all) {
    if (all.empty()) return true;
  } else if (is_of_items) {
    // An item that contains has counted is evaluated, too.
    Json items = evaluated.contained;
    items.insert(items.begin(), rest);
    Json prefix = Json::array();
    for (size_t i = 0; i < evaluated.num_items; ++i) prefix.push_back(true);
    Json schema = {{"items", items.size() == 1 ? rest : Json::object({{"anyOf", items}})}};
    if (!prefix.empty()) schema["prefixItems"] = std::move(prefix);
    all.push_back(std::move(schema));
  } else {
    all.push_back({{"properties", evaluated.names},
                   {"patternProperties", evaluated.patterns},
                   {"additionalProperties", rest}});
  }
  return all.size() == 1 ? Json(all[0]) : Json::object({{"allOf", std::move(all)}});
}

}  // namespace

Json unevaluated(SchemaMerger& merger, const Json& schema, const char* keyword,
                 std::string_view pointer) {
  const Json& rest = schema[keyword];
  if (rest == Json(true)) return true;
  const bool is_of_items = std::string_view(keyword) == "unevaluatedItems";
  Json choices = Json::array();
  for (const Case& one : Evaluation(merger, is_of_items, pointer).cases_of(schema, true)) {
    const Json choice = closed(one, rest, is_of_items);
    if (std::ranges::find(choices, choice) == choices.end()) choices.push_back(choice);
  }
  return choices.size() == 1 ? Json(choices[0]) : Json::object({{"anyOf", std::move(choices)}});
}

}  // namespace sluice
