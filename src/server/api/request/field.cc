// One function per kind of value and form of field: each finds the first value that is wrong and
// names its place. At the end, the reader of values.
#include "server/api/request/field.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/option_check.h"
#include "core/printable.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice::api {
namespace {

// What every check is given.
struct Check {
  const OptionFacts& facts;
  std::string_view place;
  const FieldRules& rules;
};

[[noreturn]] void refuse_value(const Check& check, std::string_view place, const Json& value) {
  refuse_field(place, fmt::format("{} is {}; it must be {}", printable(place), describe_json(value),
                                  allowed_values(check.facts, check.rules)));
}

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool is_allowed_text(const OptionFacts& facts, const Json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  if (text.size() < facts.field.min_bytes || text.size() > facts.field.max_bytes) return false;
  if (facts.field.no_leading_dot && text.starts_with('.')) return false;
  return facts.field.alphabet.empty() || std::ranges::all_of(text, [&](char c) {
           return is_letter_or_digit(c) || facts.field.alphabet.find(c) != std::string_view::npos;
         });
}

bool is_allowed_number(const OptionFacts& facts, const Json& value) {
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  if (!(number >= facts.number_min && number <= facts.number_max)) return false;
  return !facts.above_min || static_cast<float>(number) > static_cast<float>(facts.number_min);
}

bool is_choice(const OptionFacts& facts, const Json& value) {
  return value.is_string() &&
         std::ranges::find(facts.choices, value.get_ref<const std::string&>()) !=
             facts.choices.end();
}

bool is_allowed_integer(const OptionFacts& facts, const Json& value) {
  const auto number = integer_in(value, least_number(facts), facts.max);
  return number && (*number >= facts.min || means_unset(facts, *number));
}

// Whether a value that is one thing, no list and no object, may stand there.
bool is_allowed_scalar(const OptionFacts& facts, const Json& value) {
  switch (facts.kind) {
    case OptionKind::kFlag:
      return value.is_boolean();
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      return is_allowed_integer(facts, value);
    case OptionKind::kNumber:
      return is_allowed_number(facts, value);
    case OptionKind::kText:
      return is_allowed_text(facts, value);
    case OptionKind::kChoice:
      return is_choice(facts, value);
    default:
      return true;
  }
}

void check_size(const Check& check, const Json& list) {
  if (!list.is_array() || list.size() < check.facts.field.min_items ||
      list.size() > check.facts.field.max_items) {
    refuse_value(check, check.place, list);
  }
}

// Refuses the list if an item fails `is_allowed`. The place of an item is only written for an
// error.
template <typename IsAllowed>
void check_items(const Check& check, const Json& list, IsAllowed is_allowed) {
  const auto wrong = std::find_if_not(list.begin(), list.end(), is_allowed);
  if (wrong == list.end()) return;
  refuse_value(check, fmt::format("{}[{}]", check.place, wrong - list.begin()), *wrong);
}

bool is_token_id(const Check& check, const Json& value) {
  return integer_in(value, 0, check.rules.vocab_size - 1).has_value();
}

void check_token_ids(const Check& check, const Json& list) {
  check_items(check, list, [&](const Json& item) { return is_token_id(check, item); });
}

void check_texts(const Check& check, const Json& value) {
  if (is_allowed_text(check.facts, value)) return;
  if (value.is_string()) refuse_value(check, check.place, value);
  check_size(check, value);
  check_items(check, value, [&](const Json& item) { return is_allowed_text(check.facts, item); });
  size_t num_bytes = 0;
  for (const Json& item : value) {
    num_bytes += item.get_ref<const std::string&>().size() + kTextOverhead;
  }
  if (num_bytes > check.facts.field.max_list_bytes) refuse_value(check, check.place, value);
}

// Ids as names of members: digits, without a sign or a zero in front.
std::optional<int64_t> id_of_name(const std::string& name) {
  constexpr size_t kMaxDigits = 10;
  const bool digits = !name.empty() && name.size() <= kMaxDigits &&
                      name.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || (name.size() > 1 && name[0] == '0')) return std::nullopt;
  return std::stoll(name);
}

std::map<int32_t, float> read_biases(const Json& value) {
  std::map<int32_t, float> biases;
  for (const auto& [id, bias] : value.items()) {
    biases[static_cast<int32_t>(*id_of_name(id))] = bias.get<float>();
  }
  return biases;
}

void check_biases(const Check& check, const Json& value) {
  if (!value.is_object() || value.size() > check.facts.field.max_items) {
    refuse_value(check, check.place, value);
  }
  for (const auto& [name, bias] : value.items()) {
    const auto id = id_of_name(name);
    if (!id || *id >= check.rules.vocab_size) {
      refuse_field(check.place,
                   fmt::format("{} has the name {}; it must be {}", check.place,
                               describe_json(name), allowed_values(check.facts, check.rules)));
    }
    if (is_allowed_number(check.facts, bias)) continue;
    refuse_value(check, fmt::format("{}[\"{}\"]", check.place, name), bias);
  }
}

// The first item says what the others must be.
void check_prompt(const Check& check, const Json& value) {
  if (value.is_string() && !value.get_ref<const std::string&>().empty()) return;
  if (!value.is_array() || value.empty()) refuse_value(check, check.place, value);
  if (value[0].is_number()) return check_token_ids(check, value);
  if (value.size() > check.facts.field.max_items) refuse_value(check, check.place, value);
  if (value[0].is_string()) {
    return check_items(check, value, [](const Json& item) {
      return item.is_string() && !item.get_ref<const std::string&>().empty();
    });
  }
  check_items(check, value, [](const Json& item) { return item.is_array() && !item.empty(); });
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", check.place, i);
    check_token_ids({check.facts, place, check.rules}, value[i]);
  }
}

void check_members(const Check& check, const Json& value, UnknownFields& unknown) {
  if (!value.is_object()) refuse_value(check, check.place, value);
  // Objects without members of their own belong to other code, such as a template.
  if (check.facts.field.num_members == 0) return;
  const std::span members(check.facts.field.members, check.facts.field.num_members);
  for (const auto& [name, member] : value.items()) {
    const auto known = std::ranges::find(members, name, &OptionFacts::name);
    const std::string place = fmt::format("{}.{}", check.place, name);
    if (known == members.end()) {
      unknown.add(place);
    } else if (!member.is_null()) {
      check_field(*known, place, member, check.rules, unknown);
    }
  }
}

void check_neutral(const Check& check, const Json& value) {
  const Json neutral = Json::parse(check.facts.field.neutral);
  // Equal numbers are equal as 0 and 0.0; a number is never equal to true or false.
  if (std::ranges::find(neutral, value) != neutral.end()) return;
  refuse_field(check.place,
               fmt::format("{} is {}, which Sluice does not support: {}; it must be {}",
                           check.place, describe_json(value), check.facts.help,
                           allowed_values(check.facts, check.rules)));
}

void check_value(const Check& check, const Json& value) {
  switch (check.facts.kind) {
    case OptionKind::kTexts:
      return check_texts(check, value);
    case OptionKind::kTokenIds:
      check_size(check, value);
      return check_token_ids(check, value);
    case OptionKind::kTokenBiases:
      return check_biases(check, value);
    default:
      if (!is_allowed_scalar(check.facts, value)) refuse_value(check, check.place, value);
  }
}

void check_objects(const Check& check, const Json& value) {
  check_size(check, value);
  check_items(check, value, [](const Json& item) { return item.is_object(); });
}

// "1 to 16", "at least 1", "at most 16" or "any number of".
std::string range_text(size_t min, size_t max) {
  if (max == kNoLimit) return min == 0 ? "any number of" : fmt::format("at least {}", min);
  return min == 0 ? fmt::format("at most {}", max) : fmt::format("{} to {}", min, max);
}

std::string bytes_text(const OptionFacts& facts) {
  std::string text;
  if (facts.field.min_bytes > 0 || facts.field.max_bytes < kNoLimit) {
    text = fmt::format(" of {} bytes", range_text(facts.field.min_bytes, facts.field.max_bytes));
  }
  if (!facts.field.alphabet.empty()) {
    text += fmt::format(", of letters, digits and {}", facts.field.alphabet);
  }
  if (facts.field.no_leading_dot) text += ", not beginning with a dot";
  return text;
}

std::string list_bytes_text(const OptionFacts& facts) {
  if (facts.field.max_list_bytes == kNoLimit) return {};
  return fmt::format(", with at most {} bytes in all, where each counts {} more",
                     facts.field.max_list_bytes, kTextOverhead);
}

std::string number_text(const OptionFacts& facts) {
  return fmt::format("{} {:.3g} {} {:.3g}", facts.above_min ? "above" : "from", facts.number_min,
                     facts.above_min ? "and at most" : "to", facts.number_max);
}

std::string neutral_text(const OptionFacts& facts) {
  std::string text;
  for (const Json& value : Json::parse(facts.field.neutral)) text += value.dump() + " or ";
  return text + "left out";
}

std::string list_text(const OptionFacts& facts) {
  return fmt::format("a list of {}", range_text(facts.field.min_items, facts.field.max_items));
}

std::string value_text(const OptionFacts& facts, int32_t last_id) {
  switch (facts.kind) {
    case OptionKind::kFlag:
      return "true or false";
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      return fmt::format("an integer from {} to {}", least_number(facts), facts.max);
    case OptionKind::kNumber:
      return "a number " + number_text(facts);
    case OptionKind::kText:
      return "a text" + bytes_text(facts);
    case OptionKind::kTexts:
      return fmt::format("a text or {} texts, each{}{}", list_text(facts), bytes_text(facts),
                         list_bytes_text(facts));
    case OptionKind::kChoice:
      return fmt::format("one of \"{}\"", fmt::join(facts.choices, "\", \""));
    case OptionKind::kTokenIds:
      return fmt::format("{} token ids, integers from 0 to {}", list_text(facts), last_id);
    case OptionKind::kTokenBiases:
      return fmt::format("an object of {} numbers {} by token ids from 0 to {}",
                         range_text(0, facts.field.max_items), number_text(facts), last_id);
  }
  return {};
}

}  // namespace

void UnknownFields::add(std::string_view name) {
  ++count;
  if (names.size() < kMaxKept) names.push_back(printable(name));
}

bool has_effect(const OptionFacts& facts) {
  return facts.field.form != FieldForm::kHint && facts.field.form != FieldForm::kNotDone;
}

std::string_view help_of(const OptionFacts& facts) {
  return facts.field.help.empty() ? facts.help : facts.field.help;
}

std::string_view default_of(const OptionFacts& facts) {
  return facts.field.when_unset.empty() ? facts.when_unset : facts.field.when_unset;
}

void check_field(const OptionFacts& facts, std::string_view place, const Json& value,
                 const FieldRules& rules, UnknownFields& unknown) {
  const Check check{facts, place, rules};
  switch (facts.field.form) {
    case FieldForm::kValue:
      return check_value(check, value);
    case FieldForm::kPrompt:
      return check_prompt(check, value);
    case FieldForm::kObject:
      return check_members(check, value, unknown);
    case FieldForm::kTextOrObjects:
      if (is_allowed_text(facts, value)) return;
      return check_objects(check, value);
    case FieldForm::kObjects:
      return check_objects(check, value);
    case FieldForm::kNotDone:
      return check_neutral(check, value);
    case FieldForm::kAny:
    case FieldForm::kHint:
      return;
  }
}

std::string allowed_values(const OptionFacts& facts, const FieldRules& rules) {
  const int32_t last_id = rules.vocab_size - 1;
  switch (facts.field.form) {
    case FieldForm::kValue:
      return value_text(facts, last_id);
    case FieldForm::kPrompt:
      return fmt::format(
          "a text, a list of token ids (integers from 0 to {}), or a list of at "
          "most {} texts or of as many lists of token ids, none of them empty",
          last_id, facts.field.max_items);
    case FieldForm::kObject:
      return "an object";
    case FieldForm::kObjects:
      return list_text(facts) + " objects";
    case FieldForm::kTextOrObjects:
      return fmt::format("a text{} or {} objects", bytes_text(facts), list_text(facts));
    case FieldForm::kNotDone:
      return neutral_text(facts);
    case FieldForm::kAny:
    case FieldForm::kHint:
      return "any value";
  }
  return {};
}

std::optional<OptionValue> read_option(const OptionFacts& facts, Json&& value) {
  switch (facts.kind) {
    case OptionKind::kFlag:
      return value.get<bool>();
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      if (means_unset(facts, value.get<int64_t>())) return std::nullopt;
      return value.get<int64_t>();
    case OptionKind::kNumber:
      return value.get<double>();
    case OptionKind::kText:
      return std::move(value.get_ref<std::string&>());
    case OptionKind::kChoice:
      return std::ranges::find(facts.choices, value.get_ref<const std::string&>()) -
             facts.choices.begin();
    case OptionKind::kTexts:
      if (value.is_string()) value = Json::array({std::move(value)});
      return value.get<std::vector<std::string>>();
    case OptionKind::kTokenIds:
      return value.get<std::vector<int32_t>>();
    case OptionKind::kTokenBiases:
      return read_biases(value);
  }
  return std::nullopt;
}

void refuse_field(std::string_view place, std::string message) {
  throw Error(ErrorCode::kInvalidArgument, std::move(message), std::string(place));
}

}  // namespace sluice::api
