// Numbers, texts and given values.
#include <fmt/format.h>

#include "core/error.h"
#include "grammar/schema/schema_limits.h"
#include "grammar/schema/schema_rules.h"

namespace sluice {
// Without bounds every way to write a number is allowed.
SchemaRules::Expression SchemaRules::number_of(const Json& flat, unsigned types) {
  const NumberBounds bounds = bounds_in(flat, types);
  if (!bounds.any()) return (types & kFractionType) == 0 ? "json_integer" : "json_number";
  const Automaton texts = number_texts(bounds);
  if (texts.empty()) return std::nullopt;
  return rules_.add_plain("number", texts);
}

// Lengths alone are a repetition, which takes less than a rule for each character.
SchemaRules::Expression SchemaRules::string_of(const Json& flat, const std::string& pointer) {
  if (place_ == Place::kParameter) return plain_string(flat, pointer);
  const bool has_language =
      flat.contains("pattern") || flat.contains("format") || flat.contains("%notEnum");
  const auto texts = has_language ? texts_in(merger_, flat) : std::nullopt;
  if (texts) {
    if (texts->empty()) return std::nullopt;
    return R"("\"" )" + rules_.add_quoted("text", *texts);
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

// Each value is a literal of its own; a walk joins what they begin with.
SchemaRules::Expression SchemaRules::literals_of(const Json& values) {
  if (place_ == Place::kParameter) return plain_literals(values);
  std::vector<std::string> alternatives;
  for (const Json& value : values) {
    alternatives.push_back(value_literal(value));
    count_literal(alternatives.back());
  }
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

void SchemaRules::count_literal(const std::string& literal) {
  literal_bytes_ += literal.size();
  if (literal_bytes_ <= kMaxLiteralBytes) return;
  fail(ErrorCode::kInvalidArgument, "schema: listed values take more than {} KiB; list fewer",
       kMaxLiteralBytes >> 10);
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
