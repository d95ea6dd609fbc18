// Describes values by the kind of their row.
#include "cli/options/option_rows.h"

#include <fmt/format.h>

#include "core/option_check.h"
#include "text/option_text.h"
#include "text/value_parsers.h"

namespace sluice::cli {
namespace {

// The value's placeholder in help: "N" of "--top-k N".
std::string placeholder(const OptionFacts& facts) {
  if (!facts.placeholder.empty()) return std::string(facts.placeholder);
  switch (facts.kind) {
    case OptionKind::kFlag:
      return "";
    case OptionKind::kWhole:
    case OptionKind::kTokens:
      return "N";
    case OptionKind::kBytes:
      return "SIZE";
    case OptionKind::kNumber:
      return "X";
    case OptionKind::kText:
    case OptionKind::kTexts:
      return "TEXT";
    case OptionKind::kChoice:
      return "WORD";
    case OptionKind::kTokenIds:
      return "IDS";
    case OptionKind::kTokenBiases:
      return "ID=X,...";
  }
  return "";
}

// "sequences in one batch (256)", "longest prompt + output (0: the model's own limit)".
std::string help_text(const OptionFacts& facts) {
  std::string help(facts.help);
  if (facts.kind == OptionKind::kChoice) return help + " (" + choices_text(facts) + ")";
  if (facts.when_unset.empty()) return help;
  return fmt::format("{} ({}{})", help, facts.unset_from == 0 ? "0: " : "", facts.when_unset);
}

}  // namespace

void add_option(OptionSet& set, const OptionFacts& facts, OptionTarget target) {
  const std::string short_name = short_option(facts);
  const std::string names = (short_name.empty() ? "" : short_name + ",") + long_option(facts);
  set.value(names, placeholder(facts), help_text(facts),
            [=](std::string_view source, std::string_view text) {
              const bool is_flag = facts.kind == OptionKind::kFlag;
              // SLUICE_NAME=0 means that the flag is not given.
              if (is_flag && !parse_bool(source, text)) return;
              target(read_option_value(facts, source, text));
            });
  if (facts.kind == OptionKind::kChoice) {
    set.choices({facts.choices.begin(), facts.choices.end()});
  }
}

}  // namespace sluice::cli
