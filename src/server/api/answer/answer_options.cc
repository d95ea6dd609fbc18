#include "server/api/answer/answer_options.h"

#include <array>
#include <utility>

namespace sluice::api {

std::optional<ReasoningField> find_reasoning_field(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, ReasoningField>, 4> kNames = {
      {{"both", ReasoningField::kBoth},
       {"reasoning_content", ReasoningField::kReasoningContent},
       {"reasoning", ReasoningField::kReasoning},
       {"none", ReasoningField::kNone}}};
  for (const auto& [known, field] : kNames) {
    if (name == known) return field;
  }
  return std::nullopt;
}

}  // namespace sluice::api
