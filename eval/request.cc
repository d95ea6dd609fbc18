// Writes options by their rows, so that a new option of the engine is a part of every request.
#include "eval/request.h"

#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/option_check.h"

namespace sluice::eval {
namespace {

// " --name value"; flags have no value.
std::string words_of(const OptionFacts& facts, const OptionValue& value) {
  const std::string name = " " + long_option(facts);
  if (facts.kind == OptionKind::kChoice) {
    return fmt::format("{} {}", name, facts.choices[static_cast<size_t>(std::get<int64_t>(value))]);
  }
  return std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) {
          return name;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return fmt::format("{} {}", name, v);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return fmt::format("{} {}", name, v);
        } else {
          return fmt::format("{} {}", name, fmt::join(v, ","));
        }
      },
      value);
}

template <typename Rows, typename Options>
std::string words_of(const Rows& rows, const Options& options) {
  std::string text;
  for (const auto& row : rows) {
    const auto value = row.get(options);
    if (value && value != row.get(Options())) text += words_of(row.facts, *value);
  }
  return text;
}

}  // namespace

std::string needle_request(const NeedleCommand& command) {
  std::string text =
      fmt::format("--kind {} --lengths {} --depths {} --needles {} --seed {}", command.kind,
                  fmt::join(command.lengths, ","), fmt::join(command.depths, ","), command.needles,
                  command.engine.seed);
  if (command.max_tokens) text += fmt::format(" --max-tokens {}", *command.max_tokens);
  if (!command.haystack.empty()) text += " --haystack " + command.haystack;
  if (!command.templates.empty()) text += " --templates " + command.templates;
  const EngineOptions& engine = command.engine;
  return text + words_of(kEngineOptionRows, engine) + words_of(kKvOptionRows, engine.kv) +
         words_of(kKvOffloadRows, engine.kv) + words_of(kSparseOptionRows, engine.sparse);
}

}  // namespace sluice::eval
