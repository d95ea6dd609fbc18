#include "server/api/request/field_rows.h"

#include <array>

namespace sluice::api {
namespace {

constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

}  // namespace

OptionFacts flag_facts(std::string_view name, std::string_view when_unset, std::string_view help) {
  return {.name = name, .kind = OptionKind::kFlag, .when_unset = when_unset, .help = help};
}

OptionFacts renamed(OptionFacts facts, std::string_view name, std::string_view when_unset) {
  facts.name = name;
  facts.field.when_unset = when_unset;
  return facts;
}

OptionFacts max_tokens_facts(std::string_view name, int64_t min, std::string_view when_unset) {
  OptionFacts facts = renamed(kMaxTokensRow.facts, name, when_unset);
  facts.min = min;
  return facts;
}

OptionFacts effort_facts(std::string_view name) {
  return {.name = name,
          .kind = OptionKind::kChoice,
          .choices = kEfforts,
          .when_unset = "as the template has it",
          .help = "none asks for an answer without thoughts"};
}

OptionFacts template_kwargs_facts() {
  return {.name = "chat_template_kwargs",
          .when_unset = "{}",
          .help = "variables of the template; those that it does not read are ignored",
          .field = {.form = FieldForm::kObject}};
}

}  // namespace sluice::api
