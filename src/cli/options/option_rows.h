// Makes command line options from the rows of sluice/option_row.h, which have names, help and
// ranges.
//
// Used by option_groups.cc, command_options.cc and bench_options.cc. Thread rule: main thread,
// before other threads start.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "cli/options/option_set.h"
#include "sluice/option_row.h"

namespace sluice::cli {

// Receives a value in range, or empty if the number given means an unset option.
using OptionTarget = std::function<void(const std::optional<OptionValue>&)>;

// Declares one option. `target` is not called for a flag set to 0.
void add_option(OptionSet& set, const OptionFacts& facts, OptionTarget target);

// Sets a field. Lists of texts grow, since their options may be repeated.
template <typename Options>
void set_or_append(const OptionRow<Options>& row, const std::optional<OptionValue>& value,
                   Options* options) {
  if (row.facts.kind != OptionKind::kTexts) {
    row.set(*options, value);
    return;
  }
  auto texts = std::get<std::vector<std::string>>(*row.get(*options));
  const auto& more = std::get<std::vector<std::string>>(*value);
  texts.insert(texts.end(), more.begin(), more.end());
  row.set(*options, texts);
}

// Declares the option of a field of `options`, which outlives the set.
template <typename Options>
void add_option(OptionSet& set, const OptionRow<Options>& row, Options* options) {
  add_option(set, row.facts,
             [=](const std::optional<OptionValue>& value) { set_or_append(row, value, options); });
}

// Declares an option for every row, in the order of the table.
template <typename Rows, typename Options>
void add_options(OptionSet& set, const Rows& rows, Options* options) {
  for (const auto& row : rows) add_option(set, row, options);
}

}  // namespace sluice::cli
