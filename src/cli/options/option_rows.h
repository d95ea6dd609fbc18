// Options of the command line from rows (sluice/option_row.h): names, help and ranges are the
// row's.
//
// Used by option_groups.cc, options.cc and bench_options.cc. Thread rule: main thread, before
// anything starts.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "cli/options/option_set.h"
#include "sluice/option_row.h"

namespace sluice::cli {

// Receives a value in range; empty: the number stands for an option that is left out.
using OptionTarget = std::function<void(const std::optional<OptionValue>&)>;

// The value that `text` writes. `source` is what an error should name.
// Errors: kInvalidArgument naming source, text and what is allowed.
std::optional<OptionValue> read_option_value(const OptionFacts& facts, std::string_view source,
                                             std::string_view text);

// Declares one option. A flag that is given as 0 does not reach `target`.
void add_option(OptionSet& set, const OptionFacts& facts, OptionTarget target);

// Sets a field; texts are added to those that it has.
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

// Declares the option of a field.
template <typename Options>
void add_option(OptionSet& set, const OptionRow<Options>& row, Options* options) {
  add_option(set, row.facts,
             [=](const std::optional<OptionValue>& value) { set_or_append(row, value, options); });
}

template <typename Rows, typename Options>
void add_options(OptionSet& set, const Rows& rows, Options* options) {
  for (const auto& row : rows) add_option(set, row, options);
}

}  // namespace sluice::cli
