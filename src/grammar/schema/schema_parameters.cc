// Arguments that are not JSON: each property by its tags, and texts without quotes.
//
// What is written must be read as what it was meant to be (io/schema_types.h): a text that reads as
// a number does not stand for a string where the schema allows both.
#include <fmt/format.h>

#include "core/error.h"
#include "grammar/automata/regex.h"
#include "grammar/schema/schema_limits.h"
#include "grammar/schema/schema_rules.h"
#include "io/schema_types.h"

namespace sluice {
namespace {

constexpr int64_t kMaxPlainLength = 500;  // each character takes a rule for each one of the mark
constexpr char kBadInName[] = "<>\n";
// Python's words, too: templates write them.
constexpr char kNullWords[] = R"("null" | "None")";
constexpr char kTrueWords[] = R"("true" | "True")";
constexpr char kFalseWords[] = R"("false" | "False")";

// The texts that a reader takes for something else than a string, of these types.
std::string read_otherwise(unsigned types) {
  std::string words;
  const auto add = [&](unsigned type, const char* regex) {
    if ((types & type) != 0) words.append(words.empty() ? "" : "|").append(regex);
  };
  add(kPlainNull, "null|None");
  add(kPlainBoolean, "true|True|false|False");
  add(kPlainNumber, R"(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?)");
  std::string all = words.empty() ? "" : fmt::format(R"(^[ \t\r\n]*({})[ \t\r\n]*$)", words);
  const auto begin = [&](unsigned type, const char* bracket) {
    if ((types & type) == 0) return;
    all += fmt::format(R"({}^[ \t\r\n]*{})", all.empty() ? "" : "|", bracket);
  };
  begin(kPlainObject, R"(\{)");
  begin(kPlainArray, R"(\[)");
  return all;
}

}  // namespace

// Made once for the types that it may be read as, since each listed value asks for it.
const Automaton& SchemaRules::plain_texts() {
  const auto [it, is_new] = plain_texts_.try_emplace(plain_types_);
  if (!is_new) return it->second;
  const std::string other = read_otherwise(plain_types_);
  it->second = without_part(parameters_->mark);
  if (!other.empty()) it->second = without(it->second, of_regex(other, RegexUse::kAnywhere));
  return it->second;
}

// Numbers and words of JSON are no texts, and so they stand beside them.
SchemaRules::Expression SchemaRules::any_value() {
  if (place_ != Place::kParameter) return "json_value";
  std::string& name = any_parameter_[plain_types_];
  if (!name.empty()) return name;
  std::vector<std::string> alternatives{rules_.add_plain("plain", plain_texts())};
  if ((plain_types_ & kPlainNull) != 0) alternatives.emplace_back(kNullWords);
  if ((plain_types_ & kPlainBoolean) != 0) {
    alternatives.emplace_back(kTrueWords);
    alternatives.emplace_back(kFalseWords);
  }
  if ((plain_types_ & kPlainNumber) != 0) alternatives.emplace_back("json_number");
  if ((plain_types_ & kPlainObject) != 0) alternatives.emplace_back("json_object");
  if ((plain_types_ & kPlainArray) != 0) alternatives.emplace_back("json_array");
  return name = rules_.add("any", rule_choice(alternatives));
}

// A schema that refers to itself is arguments at the root and JSON below it.
std::string SchemaRules::key_of(const Json& flat) const {
  if (place_ == Place::kDocument) return flat.dump();
  if (place_ == Place::kArguments) return "arguments " + flat.dump();
  return fmt::format("{} {}", plain_types_, flat.dump());
}

// Without a name it is any that the schema does not list.
SchemaRules::Expression SchemaRules::parameter_of(const Json& schema, const std::string& name,
                                                  const std::string& pointer) {
  if (name.find_first_of(kBadInName) != name.npos) {
    refusals_.refuse(pointer, "properties", "has a name that this model cannot write in a call");
    return std::nullopt;
  }
  place_ = Place::kParameter;
  plain_types_ = name.empty() ? unsigned{kPlainAny} : property_types(root_, name);
  const Expression value = value_of(schema, pointer);
  place_ = Place::kArguments;
  return value;
}

// Lengths take a rule for each character here.
SchemaRules::Expression SchemaRules::plain_string(const Json& flat, const std::string& pointer) {
  Json limited = flat;
  for (const char* keyword : {"minLength", "maxLength"}) {
    if (count_in(flat, keyword).value_or(0) <= kMaxPlainLength) continue;
    if (max_in(flat, keyword)) {
      refusals_.refuse(
          pointer, keyword,
          fmt::format("is not supported above {} in calls of this model", kMaxPlainLength));
    }
    limited.erase(keyword);
  }
  const auto texts = texts_in(merger_, limited);
  const Automaton plain = texts ? intersected(*texts, plain_texts()) : plain_texts();
  if (plain.empty()) return std::nullopt;
  return rules_.add_plain("plain", plain);
}

// A text that would be read as something else is left out: no way to write it is there.
SchemaRules::Expression SchemaRules::plain_literals(const Json& values) {
  std::vector<std::string> alternatives;
  for (const Json& value : values) {
    if (value.is_null()) {
      alternatives.emplace_back(kNullWords);
    } else if (value.is_boolean()) {
      alternatives.emplace_back(value == true ? kTrueWords : kFalseWords);
    } else if (!value.is_string()) {
      alternatives.push_back(value_literal(value));
    } else if (plain_texts().accepts(value.get_ref<const std::string&>())) {
      alternatives.push_back(rule_literal(value.get_ref<const std::string&>()));
    } else {
      continue;
    }
    count_literal(alternatives.back());
  }
  return alternatives.empty() ? Expression()
                              : Expression(fmt::format("({})", fmt::join(alternatives, " | ")));
}

// Other parameters count once for the minimum, and each for the maximum.
SchemaRules::Expression SchemaRules::other_parameters(const ObjectParts& parts, int64_t count) {
  std::vector<std::string> alternatives;
  if (count >= parts.min) alternatives.emplace_back(R"("")");
  const bool has_room = !parts.max || count < *parts.max;
  if (!parts.others.empty() && has_room && count + 1 >= parts.min) {
    std::vector<std::string> choices;
    for (const OtherNames& other : parts.others) {
      choices.push_back(fmt::format("{} {} {} {} {}", rule_literal(parameters_->begin), other.name,
                                    rule_literal(parameters_->middle), other.value,
                                    rule_literal(parameters_->end)));
    }
    const std::string member = rules_.add("member", rule_choice(choices));
    const std::string most = parts.max ? std::to_string(*parts.max - count - 1) : "";
    alternatives.push_back(fmt::format("{0} ({0}){{0,{1}}}", member, most));
  }
  return alternatives.empty() ? Expression() : rule_choice(alternatives);
}

// Names that a tag can have. Longer ones would take a rule for each character.
Automaton SchemaRules::parameter_names(const Automaton& names) {
  return intersected(names, of_regex(R"([^<>\n]{1,64})", RegexUse::kWhole));
}

}  // namespace sluice
