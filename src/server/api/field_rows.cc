#include "server/api/field_rows.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace sluice::api {
namespace {

// Each choice has a copy of them, and the engine looks for each of them at every token.
constexpr size_t kMaxStopBytes = 32 << 10;

constexpr std::array<std::string_view, 2> kToolChoices = {"none", "auto"};
constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};

}  // namespace

FieldFacts sampling_facts(std::string_view name, std::string_view help) {
  const auto* row = std::ranges::find_if(
      kSamplingRows, [&](const auto& candidate) { return candidate.facts.name == name; });
  SLUICE_CHECK(row != kSamplingRows.end(), "{} has no row", name);
  const OptionFacts& facts = row->facts;
  FieldType type = FieldType::kInteger;
  if (facts.kind == OptionKind::kNumber) type = FieldType::kNumber;
  if (facts.kind == OptionKind::kFlag) type = FieldType::kBool;
  if (facts.kind == OptionKind::kTokenIds) type = FieldType::kTokenIds;
  if (facts.kind == OptionKind::kTokenBiases) type = FieldType::kBiases;
  return {.name = facts.name,
          .type = type,
          .min = std::min(facts.min, facts.unset_from),  // -1 also says "not given"
          .max = facts.max,
          .number_min = facts.number_min,
          .number_max = facts.number_max,
          .above_min = facts.above_min,
          .when_unset = "as generation_config.json has it",
          .help = help};
}

FieldFacts flag_facts(std::string_view name, std::string_view when_unset, std::string_view help) {
  return {.name = name, .type = FieldType::kBool, .when_unset = when_unset, .help = help};
}

FieldFacts with_default(FieldFacts facts, std::string_view when_unset) {
  facts.when_unset = when_unset;
  return facts;
}

FieldFacts max_tokens_facts(std::string_view name, int64_t min, std::string_view when_unset) {
  return {.name = name,
          .type = FieldType::kInteger,
          .min = min,
          .max = std::numeric_limits<int32_t>::max(),
          .when_unset = when_unset,
          .help = "tokens of an answer at most; more than the room counts as the room"};
}

FieldFacts stop_facts(std::string_view name) {
  return {.name = name,
          .type = FieldType::kTexts,
          .max_list_bytes = kMaxStopBytes,
          .min_bytes = 1,
          .max_bytes = 1024,
          .when_unset = "[]",
          .help = "end before these texts"};
}

FieldFacts effort_facts(std::string_view name) {
  return {.name = name,
          .type = FieldType::kChoice,
          .choices = kEfforts,
          .when_unset = "as the template has it",
          .help = "none asks for an answer without thoughts"};
}

FieldFacts tool_choice_facts() {
  return {.name = "tool_choice",
          .type = FieldType::kChoice,
          .choices = kToolChoices,
          .when_unset = "auto",
          .help = "whether the answer may call tools"};
}

FieldFacts template_kwargs_facts() {
  return {.name = "chat_template_kwargs",
          .type = FieldType::kObject,
          .when_unset = "{}",
          .help = "variables of the template; those that it does not read are ignored"};
}

FieldFacts cache_salt_facts() {
  return {.name = "cache_salt",
          .type = FieldType::kText,
          .min_bytes = 1,
          .max_bytes = 128,
          .alphabet = "_-",
          .when_unset = "none",
          .help = "prefixes are found by requests with the same salt only"};
}

}  // namespace sluice::api
