// Arrays: items one after another, of which some may be counted or must differ.
#include <algorithm>
#include <bit>

#include <fmt/format.h>

#include "grammar/schema/schema_disjoint.h"
#include "grammar/schema/schema_limits.h"
#include "grammar/schema/schema_rules.h"

namespace sluice {
namespace {

constexpr size_t kMaxUniqueValues = 10;     // a rule for each subset of them
constexpr int64_t kMaxCountedRules = 1000;  // a rule for each state
constexpr size_t kMaxComparedItems = 8;     // each with each other

Json prefix_of(const Json& flat) {
  return flat.contains("prefixItems") ? flat["prefixItems"] : Json::array();
}

// The schema of one item.
Json item_at(const Json& flat, size_t position) {
  const auto prefix = flat.find("prefixItems");
  const bool is_in = prefix != flat.end() && position < prefix->size();
  return is_in ? (*prefix)[position] : SchemaMerger::rest_items(flat);
}

const char* end_at(int64_t position) { return position == 0 ? R"("]")" : R"(ws "]")"; }
const char* comma_at(int64_t position) { return position == 0 ? "" : R"(ws "," ws )"; }

}  // namespace

// Different items and counted ones take rules for what came before; without them, a repetition is
// enough.
SchemaRules::Expression SchemaRules::array_of(const Json& flat, const std::string& pointer) {
  const int64_t min = count_in(flat, "minItems").value_or(0);
  const auto max = max_in(flat, "maxItems");
  check_repeats("minItems", min);
  if (max) check_repeats("maxItems", *max);
  if (max && *max < min) return std::nullopt;
  Expression rest;
  if (flat.contains("uniqueItems") && !is_always_unique(flat, pointer)) {
    if (auto items = unique_items(flat, pointer)) {
      rest = unique_rest(*items, 0);
      return rest ? Expression(R"("[" ws )" + *rest) : std::nullopt;
    }
  }
  if (!flat.contains("%contains")) return plain_array(flat, pointer);
  if (auto items = counted_items(flat, pointer)) {
    rest = counted_rest(*items,
                        {.position = 0, .counts = std::vector<int64_t>(flat["%contains"].size())});
    return rest ? Expression(R"("[" ws )" + *rest) : std::nullopt;
  }
  return plain_array(flat, pointer);
}

// Positions of the prefix are rules in a row: each may end the list or go on with its item.
SchemaRules::Expression SchemaRules::plain_array(const Json& flat, const std::string& pointer) {
  const Json prefix = flat.contains("prefixItems") ? flat["prefixItems"] : Json::array();
  const int64_t min = count_in(flat, "minItems").value_or(0);
  const auto max = max_in(flat, "maxItems");
  Expression rest = array_rest(flat, pointer, prefix.size());
  // From the last position to the first; each may also end the list.
  for (size_t i = prefix.size(); i-- > 0;) {
    const auto position = static_cast<int64_t>(i);
    std::vector<std::string> alternatives;
    if (position >= min) alternatives.emplace_back(i == 0 ? R"("]")" : R"(ws "]")");
    const Expression item =
        max && position >= *max
            ? Expression()
            : value_of(prefix[i], pointer_to(pointer + "/prefixItems", std::to_string(i)));
    if (item && rest) {
      alternatives.push_back(fmt::format("{}{} {}", i == 0 ? "" : R"(ws "," ws )", *item, *rest));
    }
    rest = alternatives.empty() ? Expression() : rules_.add("items", rule_choice(alternatives));
  }
  if (!rest) return std::nullopt;
  return R"("[" ws )" + *rest;
}

// What follows `num_prefix` items: more of them, and the end.
SchemaRules::Expression SchemaRules::array_rest(const Json& flat, const std::string& pointer,
                                                size_t num_prefix) {
  const auto done = static_cast<int64_t>(num_prefix);
  const int64_t min = std::max<int64_t>(count_in(flat, "minItems").value_or(0) - done, 0);
  const auto max_items = max_in(flat, "maxItems");
  const std::optional<int64_t> max =
      max_items ? std::optional(std::max<int64_t>(*max_items - done, 0)) : std::nullopt;
  const char* const end = done == 0 ? R"("]")" : R"(ws "]")";
  const Expression item =
      max == 0 ? Expression()
               : value_of(SchemaMerger::rest_items(flat), pointer_to(pointer, "items"));
  if (!item) return min == 0 ? Expression(end) : std::nullopt;
  const auto repeated = [&](int64_t before) {
    const std::string most = max ? std::to_string(*max - before) : "";
    return fmt::format(R"((ws "," ws {}){{{},{}}} ws "]")", *item,
                       std::max<int64_t>(min - before, 0), most);
  };
  if (done > 0) return rules_.add("items", repeated(0));
  std::vector<std::string> alternatives{*item + ' ' + repeated(1)};
  if (min == 0) alternatives.emplace_back(R"("]")");
  return rules_.add("items", rule_choice(alternatives));
}

// At most one item, or few that are plainly different.
bool SchemaRules::is_always_unique(const Json& flat, const std::string& pointer) {
  const Json prefix = prefix_of(flat);
  const Json rest = merger_.flat(SchemaMerger::rest_items(flat), pointer);
  auto max = max_in(flat, "maxItems");
  if (rest == Json(false)) max = std::min(max.value_or(std::ssize(prefix)), std::ssize(prefix));
  if (!max || *max > static_cast<int64_t>(kMaxComparedItems)) return false;
  std::vector<Json> items;
  for (size_t i = 0; std::ssize(items) < *max; ++i) {
    items.push_back(i < prefix.size() ? merger_.flat(prefix[i], pointer) : rest);
    for (size_t j = 0; j < i; ++j) {
      if (!are_disjoint(merger_, items[j], items[i], pointer)) return false;
    }
  }
  return true;
}

// Empty if it is refused, and the caller wants leniency.
std::optional<SchemaRules::UniqueItems> SchemaRules::unique_items(const Json& flat,
                                                                  const std::string& pointer) {
  Json schemas = prefix_of(flat);
  schemas.push_back(SchemaMerger::rest_items(flat));
  UniqueItems items{.literals = {},
                    .positions = {},
                    .min = count_in(flat, "minItems").value_or(0),
                    .max = max_in(flat, "maxItems"),
                    .made = {}};
  Json all = Json::array();
  bool is_short = !flat.contains("%contains");
  for (size_t i = 0; i < schemas.size() && is_short; ++i) {
    const Json item = merger_.flat(schemas[i], pointer);
    const auto values = item.is_boolean()
                            ? (item == Json(false) ? std::optional(Json::array()) : std::nullopt)
                            : values_of(merger_, item, pointer);
    is_short = values && values->size() <= kMaxUniqueValues;
    if (!is_short) break;
    // Equal values of several positions are one: 1 is 1.0.
    std::vector<size_t>& here = items.positions.emplace_back();
    for (const Json& value : *values) {
      const auto is_it = [&](const Json& other) { return same_value(other, value); };
      const auto known = static_cast<size_t>(std::ranges::find_if(all, is_it) - all.begin());
      if (known == all.size()) all.push_back(value);
      if (std::ranges::find(here, known) == here.end()) here.push_back(known);
    }
  }
  if (!is_short || all.size() > kMaxUniqueValues) {
    refusals_.refuse(pointer, "uniqueItems",
                     fmt::format("is not supported but for lists of values, at most {} in all",
                                 kMaxUniqueValues));
    return std::nullopt;
  }
  for (const Json& value : all) items.literals.push_back(value_literal(value));
  return items;
}

// What follows the values of a set: each item is new, so that their number is the position.
SchemaRules::Expression SchemaRules::unique_rest(UniqueItems& items, uint32_t used) {
  const auto known = items.made.find(used);
  if (known != items.made.end()) return known->second;
  const int64_t position = std::popcount(used);
  std::vector<std::string> alternatives;
  if (position >= items.min) alternatives.emplace_back(end_at(position));
  const size_t last = items.positions.size() - 1;
  const bool has_room = !items.max || position < *items.max;
  for (const size_t value : items.positions[std::min(static_cast<size_t>(position), last)]) {
    if (!has_room || (used >> value & 1) != 0) continue;
    const Expression next = unique_rest(items, used | uint32_t{1} << value);
    if (!next) continue;
    alternatives.push_back(
        fmt::format("{}{} {}", comma_at(position), items.literals[value], *next));
  }
  return items.made[used] =
             alternatives.empty() ? Expression() : rules_.add("items", rule_choice(alternatives));
}

// Empty if it is refused, and the caller wants leniency.
std::optional<SchemaRules::CountedItems> SchemaRules::counted_items(const Json& flat,
                                                                    const std::string& pointer) {
  CountedItems items{.flat = flat, .pointer = pointer, .last_position = 1, .made = {}};
  const auto reach = [&](int64_t position) {
    items.last_position = std::max(items.last_position, position);
  };
  reach(std::ssize(prefix_of(flat)));
  reach(count_in(flat, "minItems").value_or(0));
  reach(max_in(flat, "maxItems").value_or(0));
  double num_rules = 1;
  for (const Json& entry : flat["%contains"]) {
    reach(entry["from"].get<int64_t>());
    num_rules *= 1. + static_cast<double>(max_in(entry, "max").value_or(*count_in(entry, "min")));
  }
  num_rules *= static_cast<double>(items.last_position + 1);
  if (num_rules <= static_cast<double>(kMaxCountedRules) && flat["%contains"].size() <= 4)
    return items;
  refusals_.refuse(pointer, "contains",
                   "is not supported with, or beside, counts that are as large");
  return std::nullopt;
}

// What follows `state`. A state leads to itself or on, never back.
SchemaRules::Expression SchemaRules::counted_rest(CountedItems& items, const ItemCounts& state) {
  const auto known = items.made.find(state);
  if (known != items.made.end()) return known->second;
  const std::string name = rules_.new_name("items");
  const Json& entries = items.flat["%contains"];
  bool may_end = state.position >= count_in(items.flat, "minItems").value_or(0);
  for (size_t i = 0; i < entries.size(); ++i) {
    may_end = may_end && state.counts[i] >= *count_in(entries[i], "min");
  }
  std::vector<std::string> alternatives = counted_next(items, state, name);
  // A state whose items only lead to itself has no end.
  const auto is_loop = [&](const std::string& way) { return way.ends_with(' ' + name); };
  if (may_end) alternatives.emplace_back(end_at(state.position));
  const bool ends = !std::ranges::all_of(alternatives, is_loop);
  if (ends) rules_.set(name, rule_choice(alternatives));
  return items.made[state] = ends ? Expression(name) : std::nullopt;
}

// The next item, for each set of what it is counted as. What needs no more is not counted; what has
// an upper limit is counted exactly.
std::vector<std::string> SchemaRules::counted_next(CountedItems& items, const ItemCounts& state,
                                                   const std::string& name) {
  const Json& entries = items.flat["%contains"];
  const Json base = item_at(items.flat, static_cast<size_t>(state.position));
  std::vector<std::string> alternatives;
  // At the limit only the end is left.
  const auto max_items = max_in(items.flat, "maxItems");
  if (max_items && state.position >= *max_items) return alternatives;
  for (uint32_t set = 0; set < uint32_t{1} << entries.size(); ++set) {
    Json item = base;
    ItemCounts next = state;
    next.position = std::min(state.position + 1, items.last_position);
    bool is_possible = true;
    // What the item must satisfy to count for this set and, where that matters, for no other.
    for (size_t i = 0; i < entries.size(); ++i) {
      const Json& entry = entries[i];
      const auto max = max_in(entry, "max");
      const bool is_counted = state.position >= entry["from"].get<int64_t>() &&
                              (max || state.counts[i] < *count_in(entry, "min"));
      const bool is_in = (set >> i & 1) != 0;
      if (is_in) item = pair_of(item, entry["schema"]);
      if (!is_in && is_counted && max)
        item = pair_of(item, Json::object({{"not", entry["schema"]}}));
      next.counts[i] += is_in ? 1 : 0;
      is_possible = is_possible && (is_counted || !is_in) && (!max || next.counts[i] <= *max);
    }
    const Expression value =
        is_possible ? value_of(item, pointer_to(items.pointer, "items")) : Expression();
    if (!value) continue;
    const Expression rest = next == state ? Expression(name) : counted_rest(items, next);
    if (rest)
      alternatives.push_back(fmt::format("{}{} {}", comma_at(state.position), *value, *rest));
  }
  return alternatives;
}

}  // namespace sluice
