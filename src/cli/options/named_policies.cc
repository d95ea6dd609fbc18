// The table of short forms, and options as text.
#include "cli/options/named_policies.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"
#include "core/option_check.h"

namespace sluice::cli {
namespace {

struct ShortForm {
  std::string_view name;
  std::string_view policy;
  void (*set)(SparseOptions&);  // the options that it stands for
};

constexpr std::array kShortForms = {
    // Few tiles in prefill and few pages in decode: what sparse attention gains at most.
    ShortForm{"aggressive", "xattention+quest",
              [](SparseOptions& sparse) {
                sparse.coverage = 0.8;
                sparse.stride = 16;
                sparse.topk_tokens = 512;
              }},
};

// The option's name without prefix and unit: "topk" for "sparse_topk_tokens".
std::string short_name(const OptionFacts& facts) {
  std::string name(facts.name.substr(facts.name.find('_') + 1));
  if (name.ends_with("_tokens")) name.resize(name.rfind('_'));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// "512", "0.8", "rest", "heads.json"; empty for a flag.
std::string value_text(const OptionFacts& facts, const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  const auto* number = std::get_if<int64_t>(&value);
  if (number == nullptr) return {};
  if (facts.kind != OptionKind::kChoice) return fmt::format("{}", *number);
  return facts.choices[static_cast<size_t>(*number)];
}

// Every row with a value of its own, the policy's name left out.
template <typename Visit>
void for_each_set(const SparseOptions& sparse, const Visit& visit) {
  for (const auto& row : kSparseOptionRows) {
    const std::optional<OptionValue> value = row.get(sparse);
    if (row.facts.name == "sparse_policy" || value == row.get({})) continue;
    visit(row, *value);
  }
}

// The policy and the options that a form stands for, and nothing else.
SparseOptions options_of(const ShortForm& form) {
  SparseOptions sparse;
  sparse.policy = form.policy;
  form.set(sparse);
  return sparse;
}

std::string describe(const ShortForm& form) {
  return fmt::format("{}, {}", form.policy, describe_sparse_options(options_of(form)));
}

}  // namespace

std::string expand_policy(SparseOptions* sparse, const Given& given) {
  const auto form = std::find_if(kShortForms.begin(), kShortForms.end(),
                                 [&](const ShortForm& f) { return f.name == sparse->policy; });
  if (form == kShortForms.end()) return {};
  for_each_set(options_of(*form), [&](const auto& row, const OptionValue& value) {
    const std::optional<OptionValue> own = row.get(*sparse);
    if (own && *own != value) {
      const auto found = given.find(long_option(row.facts));
      fail(ErrorCode::kInvalidArgument,
           "{} is {}, but the policy '{}' sets it to {}; leave it out, or write '{}' with options "
           "of your own",
           found == given.end() ? long_option(row.facts) : found->second,
           value_text(row.facts, *own), form->name, value_text(row.facts, value), form->policy);
    }
    row.set(*sparse, value);
  });
  sparse->policy = form->policy;
  return fmt::format("{}: {}", form->name, describe(*form));
}

std::string short_forms_help() {
  std::string text;
  for (const ShortForm& form : kShortForms) {
    text +=
        fmt::format("{}{} ({})", text.empty() ? "short forms: " : ", ", form.name, describe(form));
  }
  return text;
}

std::string describe_sparse_options(const SparseOptions& sparse) {
  std::string text;
  for_each_set(sparse, [&](const auto& row, const OptionValue& value) {
    const std::string number = value_text(row.facts, value);
    text += (text.empty() ? "" : ", ") + short_name(row.facts);
    if (!number.empty()) text += " " + number;
  });
  return text.empty() ? "default" : text;
}

}  // namespace sluice::cli
