// The checks of each kind of option and the texts of their errors.
#include "core/option_check.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

// "; leave it out for 256", or "" for an option whose row names no default.
std::string remedy(const OptionFacts& facts) {
  return facts.when_unset.empty() ? "" : fmt::format("; leave it out for {}", facts.when_unset);
}

// Checks an integer against min, max and multiple_of.
void check_whole(const OptionFacts& facts, int64_t value) {
  const bool in_range = value >= facts.min && value <= facts.max;
  if (in_range && value % facts.multiple_of == 0) return;
  const std::string multiple =
      facts.multiple_of == 1 ? "" : fmt::format("a multiple of {} from ", facts.multiple_of);
  fail(ErrorCode::kInvalidArgument, "{} is {}, but must be {}{} to {}{}", facts.name, value,
       multiple, facts.min, facts.max, remedy(facts));
}

// Checks a number against [number_min, number_max], without number_min if above_min is set.
void check_number(const OptionFacts& facts, double value) {
  // Written so that NaN fails it.
  const bool in_range = value >= facts.number_min && value <= facts.number_max &&
                        !(facts.above_min && value == facts.number_min);
  if (in_range) return;
  fail(ErrorCode::kInvalidArgument, "{} is {}, but must be {} {:.3g} {} {:.3g}{}", facts.name,
       value, facts.above_min ? "above" : "from", facts.number_min,
       facts.above_min ? "and at most" : "to", facts.number_max, remedy(facts));
}

// Checks that an enumeration has a name: a caller may have cast any number to it.
void check_choice(const OptionFacts& facts, int64_t value) {
  if (value >= 0 && value < static_cast<int64_t>(facts.choices.size())) return;
  std::string names;
  for (const char* choice : facts.choices)
    names += (names.empty() ? "" : ", ") + std::string(choice);
  fail(ErrorCode::kInvalidArgument, "{} is {}, which is none of: {}", facts.name, value, names);
}

// The part of "-n,--max-tokens" after the comma (long_ones) or before it. Flags without a comma are
// the long name alone.
std::string_view flags_of(const OptionFacts& facts, bool long_ones) {
  const size_t comma = facts.flags.find(',');
  if (comma == std::string_view::npos) return long_ones ? facts.flags : std::string_view();
  return long_ones ? facts.flags.substr(comma + 1) : facts.flags.substr(0, comma);
}

// Checks the numbers of a map by token id. Token ids are checked where the vocabulary is known.
void check_biases(const OptionFacts& facts, const std::map<int32_t, float>& biases) {
  for (const auto& [id, bias] : biases) {
    const double value = bias;
    const bool in_range = value >= facts.number_min && value <= facts.number_max;
    if (in_range || value == -std::numeric_limits<double>::infinity()) continue;
    fail(ErrorCode::kInvalidArgument,
         "{} of token {} is {}, but must be from {:.3g} to {:.3g}, or -inf, which bans the token",
         facts.name, id, value, facts.number_min, facts.number_max);
  }
}

}  // namespace

std::string long_option(const OptionFacts& facts) {
  if (!facts.flags.empty()) return std::string(flags_of(facts, true));
  std::string result = "--" + std::string(facts.name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

std::string short_option(const OptionFacts& facts) { return std::string(flags_of(facts, false)); }

bool means_unset(const OptionFacts& facts, int64_t value) {
  return value < facts.min && value >= facts.unset_from && value <= 0;
}

int64_t least_number(const OptionFacts& facts) {
  return facts.unset_from <= 0 ? std::min(facts.unset_from, facts.min) : facts.min;
}

void check_option(const OptionFacts& facts, const OptionValue& value) {
  switch (facts.kind) {
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      check_whole(facts, std::get<int64_t>(value));
      return;
    case OptionKind::kNumber:
      check_number(facts, std::get<double>(value));
      return;
    case OptionKind::kChoice:
      check_choice(facts, std::get<int64_t>(value));
      return;
    case OptionKind::kTokenBiases:
      check_biases(facts, std::get<std::map<int32_t, float>>(value));
      return;
    case OptionKind::kFlag:
    case OptionKind::kText:
    case OptionKind::kTexts:
    case OptionKind::kTokenIds:
      return;  // what a text may be depends on more than its row
  }
}

}  // namespace sluice
