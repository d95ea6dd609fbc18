// vLLM's object as options, and limits from options.
#include "engine/speculation/draft_limits.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice {
namespace {

constexpr std::string_view kKeys[] = {"method", "num_speculative_tokens", "prompt_lookup_min",
                                      "prompt_lookup_max"};

void check_keys(const JsonObject& config) {
  for (const std::string& key : config.keys()) {
    if (std::ranges::find(kKeys, key) != std::end(kKeys)) continue;
    fail(ErrorCode::kInvalidArgument, "{} has no key '{}'; its keys are {}", config.name(), key,
         fmt::join(kKeys, ", "));
  }
}

SpeculativeMethod read_method(const JsonObject& config) {
  const std::string name = config.get_string("method");
  const auto* const it = std::ranges::find(kSpeculativeMethodNames, name);
  if (it == std::end(kSpeculativeMethodNames)) {
    config.fail("method", fmt::format("one of {}", fmt::join(kSpeculativeMethodNames, ", ")));
  }
  return static_cast<SpeculativeMethod>(it - std::begin(kSpeculativeMethodNames));
}

SpeculativeOptions read_config(const JsonObject& config) {
  check_keys(config);
  SpeculativeOptions result;
  result.method = read_method(config);
  const auto num_tokens = config.find_int("num_speculative_tokens", 0, kMaxDraftTokens);
  if (num_tokens && *num_tokens > 0) result.num_tokens = static_cast<int32_t>(*num_tokens);
  const auto longest = config.find_int("prompt_lookup_max", 1, kMaxPromptLookup);
  result.prompt_lookup_max = static_cast<int32_t>(longest.value_or(result.prompt_lookup_max));
  const auto shortest = config.find_int("prompt_lookup_min", 1, kMaxPromptLookup);
  result.prompt_lookup_min = static_cast<int32_t>(
      shortest.value_or(std::min(result.prompt_lookup_min, result.prompt_lookup_max)));
  return result;
}

// The fields that the config would set as well.
void check_alone(const SpeculativeOptions& options) {
  for (const auto& row : kSpeculativeRows) {
    if (row.facts.name == "speculative_config" || row.get(options) == row.get({})) continue;
    fail(ErrorCode::kInvalidArgument,
         "{} is given beside speculative_config; leave one of them out", row.facts.name);
  }
}

}  // namespace

SpeculativeOptions resolve_speculative(const SpeculativeOptions& options) {
  SpeculativeOptions result = options;
  if (options.config) {
    check_alone(options);
    try {
      const nlohmann::json json = parse_json(*options.config, "speculative_config");
      result = read_config(JsonObject(json, "speculative_config"));
    } catch (const Error& error) {
      throw Error(ErrorCode::kInvalidArgument, error.message());
    }
  }
  if (result.prompt_lookup_min > result.prompt_lookup_max) {
    fail(ErrorCode::kInvalidArgument,
         "prompt_lookup_min is {}, but prompt_lookup_max is {}; the first must not be larger",
         result.prompt_lookup_min, result.prompt_lookup_max);
  }
  return result;
}

DraftLimits draft_limits(const SpeculativeOptions& options, int64_t max_num_seqs) {
  const SpeculativeOptions resolved = resolve_speculative(options);
  if (resolved.method == SpeculativeMethod::kNone) return {};
  return {.max_tokens = resolved.num_tokens.value_or(kMaxAutoDraftTokens),
          .max_seqs = std::min(max_num_seqs, kMaxDraftingSeqs)};
}

}  // namespace sluice
