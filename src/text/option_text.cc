// One reader per kind.
#include "text/option_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/option_check.h"
#include "text/value_parsers.h"

namespace sluice {
namespace {

// The index of the word in the row's choices.
int64_t read_choice(const OptionFacts& facts, std::string_view source, std::string_view text) {
  const auto found = std::find(facts.choices.begin(), facts.choices.end(), text);
  if (found == facts.choices.end()) {
    fail(ErrorCode::kInvalidArgument, "{}: '{}' is not one of: {}", source, text,
         choices_text(facts));
  }
  return found - facts.choices.begin();
}

// A number in the syntax of the row's kind; read_whole checks the row's own minimum.
int64_t read_count(const OptionFacts& facts, std::string_view source, std::string_view text) {
  const int64_t least = least_number(facts);
  if (facts.kind == OptionKind::kTokens) return parse_token_count(source, text, least, facts.max);
  if (facts.kind == OptionKind::kWhole) return parse_integer(source, text, least, facts.max);
  return static_cast<int64_t>(parse_byte_size(source, text, static_cast<size_t>(facts.max)));
}

// A whole number in range, or empty for a number that means "unset".
std::optional<OptionValue> read_whole(const OptionFacts& facts, std::string_view source,
                                      std::string_view text) {
  const int64_t value = read_count(facts, source, text);
  if (means_unset(facts, value)) return std::nullopt;
  if (value < facts.min) {
    fail(ErrorCode::kInvalidArgument, "{}: {} is not {}from {} to {}", source, value,
         facts.unset_from == 0 ? "0 or " : "", facts.min, facts.max);
  }
  // multiple_of is 1 where any number will do.
  if (value % facts.multiple_of != 0) {
    fail(ErrorCode::kInvalidArgument, "{}: {} is not a multiple of {}", source, value,
         facts.multiple_of);
  }
  return value;
}

// Empty texts are refused: an unset shell variable is the likely cause.
std::string read_text(std::string_view source, std::string_view text) {
  if (text.empty()) fail(ErrorCode::kInvalidArgument, "{}: its value is empty", source);
  return std::string(text);
}

}  // namespace

std::string choices_text(const OptionFacts& facts) {
  return fmt::format("{}", fmt::join(facts.choices, ", "));
}

std::optional<OptionValue> read_option_value(const OptionFacts& facts, std::string_view source,
                                             std::string_view text) {
  switch (facts.kind) {
    case OptionKind::kFlag:
      // A flag may switch something off: flag_value is the field's value if the flag is set.
      return parse_bool(source, text) == facts.flag_value;
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      return read_whole(facts, source, text);
    case OptionKind::kNumber:
      return parse_number(source, text, {facts.number_min, facts.number_max, facts.above_min});
    case OptionKind::kText:
      return read_text(source, text);
    case OptionKind::kChoice:
      return read_choice(facts, source, text);
    case OptionKind::kTexts:
      return std::vector<std::string>{read_text(source, text)};
    case OptionKind::kTokenIds:
      return parse_token_ids(source, text);
    case OptionKind::kTokenBiases:
      return parse_token_biases(source, text, {facts.number_min, facts.number_max});
  }
  return std::nullopt;
}

}  // namespace sluice
