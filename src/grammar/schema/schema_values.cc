// Numbers, texts, lists and given values.
#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/number_texts.h"
#include "grammar/schema/schema_rules.h"

namespace sluice {
namespace {

// A longer limit needs no enforcement: no answer has as many characters or items.
constexpr int64_t kEndless = 10'000'000;
constexpr int64_t kMaxRepeats = 20'000;

// Counts may be written as 3.0.
std::optional<int64_t> count_in(const Json& schema, const char* keyword) {
  const auto it = schema.find(keyword);
  if (it == schema.end()) return std::nullopt;
  return static_cast<int64_t>(std::min(it->get<double>(), 1e15));
}

std::optional<int64_t> max_in(const Json& schema, const char* keyword) {
  const auto max = count_in(schema, keyword);
  return max && *max >= kEndless ? std::nullopt : max;
}

void check_repeats(std::string_view keyword, int64_t count) {
  if (count <= kMaxRepeats) return;
  fail(ErrorCode::kInvalidArgument,
       "schema: {} of {} is not supported; give at most {}, or from {} on", keyword, count,
       kMaxRepeats, kEndless);
}

// The tighter of an inclusive and an exclusive bound.
std::optional<NumberBound> bound_in(const Json& schema, const char* inclusive,
                                    const char* exclusive, bool is_min) {
  std::optional<NumberBound> bound;
  double value = 0;
  for (const char* keyword : {inclusive, exclusive}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) continue;
    const bool is_exclusive = keyword == exclusive;
    const auto next = it->get<double>();
    const bool is_tighter = is_min ? next > value : next < value;
    if (bound && !is_tighter && !(is_exclusive && next == value)) continue;
    value = next;
    bound = NumberBound{.value = decimal_of(next).value(), .is_exclusive = is_exclusive};
  }
  return bound;
}

// All that the schema says of numbers.
NumberBounds bounds_in(const Json& schema, bool is_integer) {
  NumberBounds bounds{.min = bound_in(schema, "minimum", "exclusiveMinimum", true),
                      .max = bound_in(schema, "maximum", "exclusiveMaximum", false),
                      .is_integer = is_integer,
                      .multiple_of = 1};
  const auto multiple = schema.find("multipleOf");
  if (multiple != schema.end()) bounds.multiple_of = static_cast<int64_t>(multiple->get<double>());
  if (bounds.multiple_of > kMaxMultiple) {
    fail(ErrorCode::kInvalidArgument,
         "schema: several multipleOf come to {}; at most {} is supported", bounds.multiple_of,
         kMaxMultiple);
  }
  return bounds;
}

// The texts that pattern, format and lengths allow; empty without any of them.
std::optional<Automaton> texts_in(const Json& schema) {
  std::optional<Automaton> texts;
  const auto keep = [&](const Automaton& next) {
    texts = texts ? intersected(*texts, next) : next;
  };
  const auto patterns = schema.find("pattern");
  if (patterns != schema.end()) {
    for (const Json& pattern : *patterns) {
      keep(of_regex(pattern.get_ref<const std::string&>(), RegexUse::kAnywhere));
    }
  }
  const auto format = schema.find("format");
  if (format != schema.end()) keep(format_texts(format->get_ref<const std::string&>()));
  const auto min = count_in(schema, "minLength");
  const auto max = max_in(schema, "maxLength");
  if (min || max) keep(of_lengths(min.value_or(0), max.value_or(-1)));
  return texts;
}

}  // namespace

// Without bounds every way to write a number is allowed.
SchemaRules::Expression SchemaRules::number_of(const Json& flat, bool is_integer) {
  const NumberBounds bounds = bounds_in(flat, is_integer);
  if (!bounds.any()) return is_integer ? "json_integer" : "json_number";
  const Automaton texts = number_texts(bounds);
  if (texts.empty()) return std::nullopt;
  return rules_.add_plain("number", texts);
}

// Lengths alone are a repetition, which takes less than a rule for each character.
SchemaRules::Expression SchemaRules::string_of(const Json& flat) {
  const bool has_language = flat.contains("pattern") || flat.contains("format");
  if (has_language) {
    const Automaton texts = *texts_in(flat);
    if (texts.empty()) return std::nullopt;
    return R"("\"" )" + rules_.add_quoted("text", texts);
  }
  const int64_t min = count_in(flat, "minLength").value_or(0);
  const auto max = max_in(flat, "maxLength");
  if (min == 0 && !max) return "json_string";
  check_repeats("minLength", min);
  if (max) check_repeats("maxLength", *max);
  if (max && *max < min) return std::nullopt;
  const std::string most = max ? std::to_string(*max) : "";
  return fmt::format(R"("\"" json_char{{{},{}}} "\"")", min, most);
}

// Positions of the prefix are rules in a row: each may end the list or go on with its item.
SchemaRules::Expression SchemaRules::array_of(const Json& flat, const std::string& pointer) {
  const Json prefix = flat.contains("prefixItems") ? flat["prefixItems"] : Json::array();
  const int64_t min = count_in(flat, "minItems").value_or(0);
  const auto max = max_in(flat, "maxItems");
  check_repeats("minItems", min);
  if (max) check_repeats("maxItems", *max);
  if (max && *max < min) return std::nullopt;
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
               : value_of(SchemaMerger::rest_of(flat, "items"), pointer_to(pointer, "items"));
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

// Values that the rest of the schema forbids are left out.
SchemaRules::Expression SchemaRules::listed_value(const Json& flat, const Json& values,
                                                  const std::string& pointer) {
  std::vector<std::string> alternatives;
  for (const Json& value : values) {
    if (satisfies(value, flat, pointer)) alternatives.push_back(value_literal(value));
  }
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

// Whether a listed value satisfies what else the schema says of its type.
bool SchemaRules::satisfies(const Json& value, const Json& flat, const std::string& pointer) {
  if ((type_of_value(value) & types_of(flat)) == 0) return false;
  if (value.is_string()) {
    const auto texts = texts_in(flat);
    return !texts || texts->accepts(value.get_ref<const std::string&>());
  }
  if (value.is_number()) {
    const int64_t multiple = bounds_in(flat, false).multiple_of;
    const auto number = value.get<double>();
    const auto is_beyond = [&](const char* keyword, bool is_min) {
      const auto it = flat.find(keyword);
      if (it == flat.end()) return false;
      const auto bound = it->get<double>();
      const bool is_exclusive = std::string_view(keyword).starts_with("ex");
      return is_exclusive && number == bound ? true : is_min ? number < bound : number > bound;
    };
    return !is_beyond("minimum", true) && !is_beyond("exclusiveMinimum", true) &&
           !is_beyond("maximum", false) && !is_beyond("exclusiveMaximum", false) &&
           (multiple == 1 || std::fmod(number, static_cast<double>(multiple)) == 0);
  }
  if (!value.is_structured()) return true;
  constexpr std::array kOfStructures = {
      "properties",    "patternProperties", "additionalProperties", "required", "propertyNames",
      "minProperties", "maxProperties",     "prefixItems",          "items",    "minItems",
      "maxItems"};
  for (const char* keyword : kOfStructures) {
    if (flat.contains(keyword)) {
      refusals_.refuse(pointer, keyword,
                       "beside values that are lists or objects is not supported");
    }
  }
  return true;
}

// As JSON, with blanks where a document may have some.
std::string SchemaRules::value_literal(const Json& value) {
  if (value.is_string()) return quoted_literal(rules_, value.get_ref<const std::string&>());
  if (!value.is_structured()) return rule_literal(value.dump());
  const bool is_array = value.is_array();
  std::string text = rule_literal(is_array ? "[" : "{") + " ws ";
  bool is_first = true;
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (!is_first) text += R"(ws "," ws )";
    is_first = false;
    if (!is_array) text += quoted_literal(rules_, it.key()) + R"( ws ":" ws )";
    text += value_literal(it.value()) + ' ';
  }
  if (!value.empty()) text += "ws ";
  return text + rule_literal(is_array ? "]" : "}");
}

// Names of texts: `propertyNames` allows what this schema allows of texts.
std::optional<Automaton> SchemaRules::name_texts(const Json& flat, const std::string& pointer) {
  if (flat == Json(true)) return std::nullopt;
  if (flat == Json(false) || (types_of(flat) & kStringType) == 0) return Automaton();
  if (flat.contains("anyOf") || flat.contains("oneOf")) {
    refusals_.refuse(pointer, "propertyNames", "with choices is not supported");
  }
  const auto values = flat.find("enum");
  if (values == flat.end()) return texts_in(flat);
  std::vector<std::string> names;
  for (const Json& value : *values) {
    if (value.is_string() && satisfies(value, flat, pointer)) names.push_back(value);
  }
  return of_texts(names);
}

// What every grammar of a schema may use. json_text ends with its quote: a rule that may be empty
// would end after every character, which takes a tenth more for every mask.
void SchemaRules::add_basic_rules() {
  const std::string any = rules_.unicode_escape(CharSet::all());
  const CharSet plain = CharSet::all().without({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  rules_.set("ws", R"([ \t\n\r]{0,8})");
  rules_.set("json_value", R"(json_object | json_array | json_string | json_number | "true" | )"
                           R"("false" | "null")");
  rules_.set("json_object", R"("{" ws ("}" | json_member (ws "," ws json_member)* ws "}"))");
  rules_.set("json_member", R"(json_string ws ":" ws json_value)");
  rules_.set("json_array", R"("[" ws ("]" | json_value (ws "," ws json_value)* ws "]"))");
  rules_.set("json_string", R"("\"" json_text)");
  rules_.set(kAnyQuoted,
             fmt::format(R"("\"" | {} json_text | "\\" json_escape json_text)", rule_class(plain)));
  rules_.set("json_char", fmt::format(R"({} | "\\" json_escape)", rule_class(plain)));
  rules_.set("json_escape", fmt::format(R"(["\\/bfnrt] | "u" {})", any));
  rules_.set("json_integer", R"("0" | "-"? [1-9] [0-9]*)");
  rules_.set("json_number", R"("-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+\-]? [0-9]+)?)");
}

}  // namespace sluice
