// Draws facts from the templates of a file.
#include "eval/task.h"

#include <algorithm>
#include <utility>

namespace sluice::eval {
namespace {

// A value of the kind's list, or a number.
std::string random_value(const NeedleKind& kind, Random* random) {
  if (!kind.values.empty()) return kind.values[random->below(kind.values.size())];
  return random_digits(kind.value_digits, random);
}

}  // namespace

TemplateTask::TemplateTask(NeedleKind kind, std::string prompt)
    : kind_(std::move(kind)), prompt_(std::move(prompt)) {}

// The order of the draws is part of the format: another order makes other items of a seed.
NeedleFacts TemplateTask::draw(double depth, Random* random) const {
  NeedleFacts facts;
  facts.key = kind_.keys[random->below(kind_.keys.size())];
  const auto with_key = [&](const std::string& text) {
    return fill_template(text, "key", facts.key);
  };
  std::string listed;
  const auto num_values = static_cast<size_t>(kind_.num_values());
  for (size_t i = 0; i < num_values; ++i) {
    const std::string value = random_value(kind_, random);
    facts.values.push_back(value);
    listed += (i == 0 ? "" : kind_.separator) + value;
    facts.sentences.push_back({.text = fill_template(with_key(kind_.needle), "value", value),
                               .place = spread(depth, i, num_values)});
  }
  facts.question = with_key(kind_.question);
  facts.expected = fill_template(with_key(kind_.answer), "value", listed);
  return facts;
}

int64_t TemplateTask::answer_room(const TokenCounter& num_tokens) const {
  std::vector<std::string> values = kind_.values;
  // Numbers with equally many digits take about as many tokens; 999... stands for all.
  if (values.empty()) values.emplace_back(static_cast<size_t>(kind_.value_digits), '9');
  int64_t key_tokens = 0, value_tokens = 0;
  for (const std::string& key : kind_.keys) key_tokens = std::max(key_tokens, num_tokens(key));
  for (const std::string& value : values) {
    value_tokens = std::max(value_tokens, num_tokens(kind_.separator + value));
  }
  return num_tokens(kind_.answer) + key_tokens + kind_.num_values() * value_tokens +
         kAnswerSlackTokens;
}

}  // namespace sluice::eval
