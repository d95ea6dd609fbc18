// Objects: the properties in the order of the schema, then other names.
#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/schema/schema_rules.h"

namespace sluice {
namespace {

constexpr int64_t kMaxProperties = 1000;

int64_t count_or(const Json& schema, const char* keyword, int64_t otherwise) {
  const auto it = schema.find(keyword);
  return it == schema.end() ? otherwise : static_cast<int64_t>(std::min(it->get<double>(), 1e15));
}

const Json& map_in(const Json& schema, const char* keyword) {
  static const Json kNone = Json::object();
  const auto it = schema.find(keyword);
  return it == schema.end() ? kNone : *it;
}

Automaton names_like(const std::string& pattern) { return of_regex(pattern, RegexUse::kAnywhere); }

}  // namespace

// Each property by its place: a document has them in the order of the schema, so that one rule for
// each place is enough. Any order would take a rule for each subset.
SchemaRules::Expression SchemaRules::object_of(const Json& flat, const std::string& pointer) {
  ObjectParts parts;
  parts.min = count_or(flat, "minProperties", 0);
  const int64_t max = count_or(flat, "maxProperties", kMaxProperties + 1);
  if (max <= kMaxProperties) parts.max = max;
  if (!add_properties(flat, pointer, parts)) return std::nullopt;
  add_other_names(flat, pointer, parts);
  const auto num_properties = std::ssize(parts.properties);
  // A name that comes twice counts once, and a grammar does not see that.
  if (parts.min > num_properties + (parts.others.empty() ? 0 : 1)) {
    if (parts.others.empty()) return std::nullopt;
    refusals_.refuse(pointer, "minProperties",
                     "is not supported above the number of named properties and one more");
    parts.min = num_properties + 1;
  }
  const bool is_any = num_properties == 0 && parts.others.size() == 1 && parts.min == 0 &&
                      !parts.max && parts.others[0].name == "json_string" &&
                      parts.others[0].value == "json_value";
  if (is_any) return "json_object";
  const Expression body = members(parts, 0, 0);
  return body ? Expression(R"("{" ws )" + *body) : std::nullopt;
}

// What a name must satisfy: its own schema, and those of the patterns that it matches.
Json SchemaRules::property_schema(const Json& flat, const std::string& name) const {
  Json all = Json::array();
  const Json& properties = map_in(flat, "properties");
  const auto own = properties.find(name);
  if (own != properties.end()) all.push_back(*own);
  const Json& patterns = map_in(flat, "patternProperties");
  for (auto it = patterns.begin(); it != patterns.end(); ++it) {
    if (names_like(it.key()).accepts(name)) all.push_back(it.value());
  }
  if (all.empty()) return SchemaMerger::rest_of(flat, "additionalProperties");
  return all.size() == 1 ? all[0] : Json::object({{"allOf", all}});
}

// False if a required property can have no value.
bool SchemaRules::add_properties(const Json& flat, const std::string& pointer, ObjectParts& parts) {
  const Json required = flat.contains("required") ? flat["required"] : Json::array();
  std::vector<std::string> names;
  for (auto it = map_in(flat, "properties").begin(); it != map_in(flat, "properties").end(); ++it) {
    names.push_back(it.key());
  }
  for (const Json& name : required) {
    if (std::ranges::find(names, name.get<std::string>()) == names.end()) names.push_back(name);
  }
  if (std::ssize(names) > kMaxProperties) {
    fail(ErrorCode::kInvalidArgument, "schema: {} has {} properties; at most {} are supported",
         pointer, names.size(), kMaxProperties);
  }
  const auto limits =
      name_texts(merger_.flat(SchemaMerger::rest_of(flat, "propertyNames"), pointer), pointer);
  for (const std::string& name : names) {
    Property property{.name = name, .value = {}, .is_required = has_value(required, name)};
    if (!limits || limits->accepts(name)) {
      property.value = value_of(property_schema(flat, name),
                                pointer_to(pointer_to(pointer, "properties"), name));
    }
    if (!property.value && property.is_required) return false;
    if (property.value) parts.properties.push_back(std::move(property));
  }
  return true;
}

// Names that match a pattern, and all others. Properties that may have no value stay forbidden.
void SchemaRules::add_other_names(const Json& flat, const std::string& pointer,
                                  ObjectParts& parts) {
  const Json& properties = map_in(flat, "properties");
  const Json& patterns = map_in(flat, "patternProperties");
  std::vector<std::string> named;
  for (auto it = properties.begin(); it != properties.end(); ++it) named.push_back(it.key());
  for (const Property& property : parts.properties) named.push_back(property.name);
  const auto limits =
      name_texts(merger_.flat(SchemaMerger::rest_of(flat, "propertyNames"), pointer), pointer);
  const Json rest_schema = SchemaMerger::rest_of(flat, "additionalProperties");
  if (named.empty() && patterns.empty() && !limits) {
    const Expression value = value_of(rest_schema, pointer_to(pointer, "additionalProperties"));
    if (value) parts.others.push_back({.name = "json_string", .value = *value});
    return;
  }
  Automaton rest = without(limits ? *limits : of_lengths(0, -1), of_texts(named));
  for (auto it = patterns.begin(); it != patterns.end(); ++it) {
    const Automaton like = names_like(it.key());
    add_names(intersected(rest, like), it.value(), pointer_to(pointer, "patternProperties"), parts);
    rest = without(rest, like);
    for (auto other = std::next(it); other != patterns.end(); ++other) {
      const bool overlaps = !intersected(like, names_like(other.key())).empty();
      if (!overlaps || other.value() == it.value()) continue;
      refusals_.refuse(
          pointer, "patternProperties",
          fmt::format("is not supported where a name may match two patterns, as {} and {}",
                      it.key(), other.key()));
    }
  }
  add_names(rest, rest_schema, pointer_to(pointer, "additionalProperties"), parts);
}

// One kind of other names, if there are any and a value may have them.
void SchemaRules::add_names(const Automaton& names, const Json& schema, const std::string& pointer,
                            ObjectParts& parts) {
  if (names.empty()) return;
  const Expression value = value_of(schema, pointer);
  if (!value) return;
  const std::string rest = rules_.add_quoted("name", names);
  parts.others.push_back({.name = rules_.add("key", R"("\"" )" + rest), .value = *value});
}

// The rule for what follows when `count` members are written and property `index` is next. Counts
// are told apart as far as limits and the first comma need.
SchemaRules::Expression SchemaRules::members(ObjectParts& parts, size_t index, int64_t count) {
  if (parts.max && count > *parts.max) return std::nullopt;
  if (!parts.max) count = std::min(count, std::max<int64_t>(parts.min, 1));
  const auto [it, is_new] = parts.made.try_emplace({index, count});
  if (!is_new) return it->second;
  const Expression body = index == parts.properties.size() ? other_members(parts, count)
                                                           : members_body(parts, index, count);
  const Expression name = body ? Expression(rules_.add("members", *body)) : std::nullopt;
  return parts.made[{index, count}] = name;
}

// The property, or what follows without it.
SchemaRules::Expression SchemaRules::members_body(ObjectParts& parts, size_t index, int64_t count) {
  std::vector<std::string> alternatives;
  const Property property = parts.properties[index];
  if (const Expression next = members(parts, index + 1, count + 1)) {
    alternatives.push_back(fmt::format(R"({}{} ws ":" ws {} {})", count > 0 ? R"(ws "," ws )" : "",
                                       quoted_literal(rules_, property.name), *property.value,
                                       *next));
  }
  if (!property.is_required) {
    if (const Expression without_it = members(parts, index + 1, count)) {
      alternatives.push_back(*without_it);
    }
  }
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

// Other names count once for the minimum, and each for the maximum.
SchemaRules::Expression SchemaRules::other_members(ObjectParts& parts, int64_t count) {
  std::vector<std::string> alternatives;
  const char* const end = count > 0 ? R"(ws "}")" : R"("}")";
  if (count >= parts.min) alternatives.emplace_back(end);
  const bool has_room = !parts.max || count < *parts.max;
  if (!parts.others.empty() && has_room && count + 1 >= parts.min) {
    std::vector<std::string> choices;
    for (const OtherNames& other : parts.others) {
      choices.push_back(fmt::format(R"({} ws ":" ws {})", other.name, other.value));
    }
    const std::string member = rules_.add("member", rule_choice(choices));
    const std::string most = parts.max ? std::to_string(*parts.max - count - 1) : "";
    alternatives.push_back(fmt::format(R"({0}{1} (ws "," ws {1}){{0,{2}}} ws "}}")",
                                       count > 0 ? R"(ws "," ws )" : "", member, most));
  }
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

}  // namespace sluice
