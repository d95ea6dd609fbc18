// Objects: the properties in the order of the schema, then other names.
#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/schema/schema_gate.h"
#include "grammar/schema/schema_limits.h"
#include "grammar/schema/schema_rules.h"

namespace sluice {
namespace {

constexpr int64_t kMaxCountedProperties = kMaxProperties;  // more are no limit
constexpr int64_t kMaxOptional = 600;                      // compiled in about two seconds
constexpr int64_t kMaxCountRules = 2500;                   // the same
constexpr size_t kMaxNameClasses = 512;                    // each with a key and a value

int64_t count_or(const Json& schema, const char* keyword, int64_t otherwise) {
  const auto it = schema.find(keyword);
  return it == schema.end() ? otherwise : static_cast<int64_t>(std::min(it->get<double>(), 1e15));
}

const Json& map_in(const Json& schema, const char* keyword) {
  static const Json kNone = Json::object();
  const auto it = schema.find(keyword);
  return it == schema.end() ? kNone : *it;
}

}  // namespace

// Each property by its place: a document has them in the order of the schema, so that one rule for
// each place is enough. Any order would take a rule for each subset.
SchemaRules::Expression SchemaRules::object_of(const Json& flat, const std::string& pointer) {
  ObjectParts parts{.is_arguments = place_ == Place::kArguments};
  parts.min = count_or(flat, "minProperties", 0);
  const int64_t max = count_or(flat, "maxProperties", kMaxCountedProperties + 1);
  if (max <= kMaxCountedProperties) parts.max = max;
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
  limit_counts(flat, pointer, parts);
  const bool is_any = !parts.is_arguments && num_properties == 0 && parts.others.size() == 1 &&
                      parts.min == 0 && !parts.max && parts.others[0].name == "json_string" &&
                      parts.others[0].value == "json_value";
  if (is_any) return "json_object";
  const Expression body = members(parts, 0, 0);
  if (!body || parts.is_arguments) return body;
  return R"("{" ws )" + *body;
}

// Each count takes rules of its own for each property, of which a step may skip any number: time
// and memory grow with the square of the optional properties.
void SchemaRules::limit_counts(const Json& flat, const std::string& pointer, ObjectParts& parts) {
  const auto num_properties = std::ssize(parts.properties);
  if (parts.others.empty() && parts.max && *parts.max >= num_properties) parts.max.reset();
  const auto num_optional =
      num_properties - std::ranges::count_if(parts.properties, &Property::is_required);
  if (num_optional > kMaxOptional) {
    fail(ErrorCode::kInvalidArgument,
         "schema: {} has {} properties that are not required; at most {} are supported", pointer,
         num_optional, kMaxOptional);
  }
  const int64_t num_counts = std::max(parts.min, parts.max.value_or(0)) + 1;
  if (num_optional == 0 || num_counts * num_properties <= kMaxCountRules) return;
  const char* const keyword = flat.contains("maxProperties") ? "maxProperties" : "minProperties";
  refusals_.refuse(pointer, keyword, "is not supported beside as many properties");
  parts.min = 0;
  parts.max.reset();
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
  if (names.size() > kMaxProperties) {
    fail(ErrorCode::kInvalidArgument, "schema: {} has {} properties; at most {} are supported",
         pointer, names.size(), kMaxProperties);
  }
  const auto limits =
      name_texts(flat.contains("propertyNames") ? flat["propertyNames"] : Json(true), pointer);
  for (const std::string& name : names) {
    Property property{.name = name, .value = {}, .is_required = has_value(required, name)};
    if (!limits || limits->accepts(name)) {
      const std::string place = pointer_to(pointer_to(pointer, "properties"), name);
      const Json schema = merger_.property_schema(flat, name);
      property.value =
          parts.is_arguments ? parameter_of(schema, name, place) : value_of(schema, place);
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
      name_texts(flat.contains("propertyNames") ? flat["propertyNames"] : Json(true), pointer);
  const bool has_patterns = !patterns.empty();
  if (named.empty() && !has_patterns && !limits && !parts.is_arguments) {
    const Expression value =
        value_of(class_schema(flat, {}), pointer_to(pointer, "additionalProperties"));
    if (value) parts.others.push_back({.name = "json_string", .value = *value});
    return;
  }
  // Limits are rare, and a product of automata took a fifth of the time of a schema.
  const Automaton rest = limits ? without(*limits, of_texts(named)) : all_but(named);
  for (const NameClass& names : classes_of(flat, rest, pointer)) {
    const char* const keyword =
        names.patterns.empty() ? "additionalProperties" : "patternProperties";
    add_names(names.names, class_schema(flat, names), pointer_to(pointer, keyword), parts);
  }
}

// Splits the names by one pattern after another.
std::vector<SchemaRules::NameClass> SchemaRules::classes_of(const Json& flat,
                                                            const Automaton& names,
                                                            const std::string& pointer) {
  std::set<std::string> patterns;
  for (auto it = map_in(flat, "patternProperties").begin();
       it != map_in(flat, "patternProperties").end(); ++it) {
    patterns.insert(it.key());
  }
  std::vector<NameClass> classes{{.names = names, .patterns = {}}};
  for (const std::string& pattern : patterns) {
    const Automaton& like = merger_.pattern_texts(pattern);
    std::vector<NameClass> split;
    for (NameClass& one : classes) {
      NameClass matching{.names = intersected(one.names, like), .patterns = one.patterns};
      matching.patterns.insert(pattern);
      // Most classes have no name that matches: they stay as they are.
      if (matching.names.empty()) {
        split.push_back(std::move(one));
        continue;
      }
      NameClass others{.names = without(one.names, like), .patterns = std::move(one.patterns)};
      split.push_back(std::move(matching));
      if (!others.names.empty()) split.push_back(std::move(others));
    }
    classes = std::move(split);
    if (classes.size() > kMaxNameClasses) {
      Refusals::fail_at(pointer, "patternProperties", "overlap in too many ways");
    }
  }
  return classes;
}

// What their patterns ask for, and what is said of all that is not named and matches none of some
// patterns.
Json SchemaRules::class_schema(const Json& flat, const NameClass& names) {
  Json all = true;
  for (const std::string& pattern : names.patterns) {
    const Json& own = map_in(flat, "patternProperties");
    if (own.contains(pattern)) all = pair_of(all, own[pattern]);
  }
  const auto others = flat.find("%others");
  if (others == flat.end()) return all;
  for (const Json& other : *others) {
    const auto is_excepted = [&](const Json& p) {
      return names.patterns.contains(p.get<std::string>());
    };
    if (std::ranges::none_of(other["patterns"], is_excepted)) all = pair_of(all, other["schema"]);
  }
  return all;
}

// One kind of other names, if there are any and a value may have them.
void SchemaRules::add_names(const Automaton& names, const Json& schema, const std::string& pointer,
                            ObjectParts& parts) {
  if (names.empty()) return;
  const Expression value =
      parts.is_arguments ? parameter_of(schema, {}, pointer) : value_of(schema, pointer);
  if (!value) return;
  if (parts.is_arguments) {
    const Automaton written = parameter_names(names);
    if (written.empty()) return;
    parts.others.push_back({.name = rules_.add_plain("name", written), .value = *value});
    return;
  }
  const std::string rest = rules_.add_quoted("name", names);
  parts.others.push_back({.name = rules_.add("key", R"("\"" )" + rest), .value = *value});
}

// `propertyNames` allows what this schema allows of texts; empty without a limit.
std::optional<Automaton> SchemaRules::name_texts(const Json& schema, const std::string& pointer) {
  const Json flat = merger_.flat(schema, pointer);
  if (flat == Json(true) || flat.empty()) return std::nullopt;
  if (flat == Json(false) || (types_of(flat) & kStringType) == 0) return Automaton();
  if (flat.contains("enum")) {
    std::vector<std::string> names;
    const Json values = values_of(merger_, flat, pointer).value();
    for (const Json& value : values) {
      if (value.is_string()) names.push_back(value);
    }
    return of_texts(names);
  }
  if (const auto choices = choices_of(flat, pointer)) {
    Automaton all;
    for (const Json& choice : *choices) {
      // One choice without a limit is enough.
      const auto names = name_texts(choice, pointer);
      if (!names) return std::nullopt;
      all = united(all, *names);
    }
    return all;
  }
  return texts_in(merger_, flat);
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

// A property with what separates it from the one before it.
std::string SchemaRules::member_of(const ObjectParts& parts, int64_t count,
                                   const Property& property) {
  if (parts.is_arguments) {
    return fmt::format("{} {} {}",
                       rule_literal(parameters_->begin + property.name + parameters_->middle),
                       *property.value, rule_literal(parameters_->end));
  }
  return fmt::format(R"({}{} ws ":" ws {})", count > 0 ? R"(ws "," ws )" : "",
                     quoted_literal(rules_, property.name), *property.value);
}

// The property, or what follows without it.
SchemaRules::Expression SchemaRules::members_body(ObjectParts& parts, size_t index, int64_t count) {
  std::vector<std::string> alternatives;
  const Property property = parts.properties[index];
  if (const Expression next = members(parts, index + 1, count + 1)) {
    const std::string member = member_of(parts, count, property);
    alternatives.push_back(fmt::format("{} {}", member, *next));
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
  if (parts.is_arguments) return other_parameters(parts, count);
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
