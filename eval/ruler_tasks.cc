// The tasks of RULER that hide sentences in a haystack.
#include "eval/ruler_tasks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace sluice::eval {
namespace {

constexpr int32_t kNumberDigits = 7;
constexpr int32_t kVariableLetters = 5;
constexpr int32_t kVariableDigits = 5;

// Any place of the haystack.
double random_place(Random* random) {
  constexpr size_t kSteps = 10000;
  return static_cast<double>(random->below(kSteps + 1)) / kSteps;
}

void sort_by_place(std::vector<HiddenSentence>* sentences) {
  std::stable_sort(
      sentences->begin(), sentences->end(),
      [](const HiddenSentence& a, const HiddenSentence& b) { return a.place < b.place; });
}

std::string number_sentence(const std::string& key, const std::string& value) {
  return fmt::format("One of the special magic numbers for {} is: {}.", key, value);
}

// The keys of the built-in template: pairs of an adjective and a noun.
class NumbersTask : public NeedleTask {
 public:
  const std::string& prompt() const override { return prompt_; }
  int64_t answer_room(const TokenCounter&) const override { return kRulerAnswerTokens; }

 protected:
  std::vector<std::string> draw_keys(size_t num_keys, Random* random) const {
    return DistinctTexts().next(num_keys, [&] { return keys_[random->below(keys_.size())]; });
  }
  static std::vector<std::string> draw_numbers(size_t num, Random* random) {
    return DistinctTexts().next(num, [&] { return random_digits(kNumberDigits, random); });
  }

 private:
  std::string prompt_ =
      "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
      "I will quiz you about the numbers afterwards.\n\n{haystack}\n\n{question}";
  std::vector<std::string> keys_ = default_needle_templates().kinds.front().keys;
};

// The asked fact is at the depth, the others are anywhere.
class MultiKeyTask final : public NumbersTask {
 public:
  NeedleFacts draw(double depth, Random* random) const override {
    const std::vector<std::string> keys = draw_keys(kNumRulerKeys, random);
    const std::vector<std::string> numbers = draw_numbers(kNumRulerKeys, random);
    NeedleFacts facts;
    facts.key = keys.front();
    facts.values = {numbers.front()};
    for (size_t i = 0; i < keys.size(); ++i) {
      facts.sentences.push_back({.text = number_sentence(keys[i], numbers[i]),
                                 .place = i == 0 ? depth : random_place(random)});
    }
    sort_by_place(&facts.sentences);
    facts.question = fmt::format(
        "What is the special magic number for {} mentioned in the provided text?", facts.key);
    facts.expected =
        fmt::format("The special magic number for {} mentioned in the provided text is {}.",
                    facts.key, numbers.front());
    return facts;
  }
};

// The first value is at the depth, the others follow at even distances.
class MultiValueTask final : public NumbersTask {
 public:
  NeedleFacts draw(double depth, Random* random) const override {
    NeedleFacts facts;
    facts.key = draw_keys(1, random).front();
    facts.values = draw_numbers(kNumRulerValues, random);
    for (size_t i = 0; i < facts.values.size(); ++i) {
      facts.sentences.push_back({.text = number_sentence(facts.key, facts.values[i]),
                                 .place = spread(depth, i, facts.values.size())});
    }
    facts.question = fmt::format(
        "What are all the special magic numbers for {} mentioned in the provided text?", facts.key);
    facts.expected =
        fmt::format("The special magic numbers for {} mentioned in the provided text are {}.",
                    facts.key, fmt::join(facts.values, ", "));
    return facts;
  }
};

// The asked chain begins at the depth, and its other assignments follow at even distances. The
// assignments of other chains are at random places, each after the one that it refers to.
class VariablesTask final : public NeedleTask {
 public:
  const std::string& prompt() const override { return prompt_; }
  int64_t answer_room(const TokenCounter&) const override { return kRulerAnswerTokens; }

  NeedleFacts draw(double depth, Random* random) const override {
    DistinctTexts names, numbers;
    NeedleFacts facts;
    for (size_t chain = 0; chain <= kNumOtherChains; ++chain) {
      std::vector<std::string> variables =
          names.next(kNumHops + 1, [&] { return random_letters(kVariableLetters, 'A', random); });
      const std::string number =
          numbers.next([&] { return random_digits(kVariableDigits, random); });
      std::vector<double> places;
      for (size_t i = 0; i < variables.size(); ++i) {
        places.push_back(chain == 0 ? spread(depth, i, variables.size()) : random_place(random));
      }
      std::sort(places.begin(), places.end());
      hide_chain(variables, number, places, &facts.sentences);
      if (chain > 0) continue;
      facts.key = number;
      facts.values = std::move(variables);
    }
    sort_by_place(&facts.sentences);
    facts.question = fmt::format(
        "Find all variables that are assigned the value {} in the text above. Answer with the "
        "names of the variables only.",
        facts.key);
    facts.expected = fmt::format("{}", fmt::join(facts.values, ", "));
    return facts;
  }

 private:
  // Adds "VAR A = 12345.", "VAR B = VAR A." and so on.
  static void hide_chain(const std::vector<std::string>& variables, const std::string& number,
                         const std::vector<double>& places,
                         std::vector<HiddenSentence>* sentences) {
    for (size_t i = 0; i < variables.size(); ++i) {
      const std::string assigned = i == 0 ? number : "VAR " + variables[i - 1];
      sentences->push_back(
          {.text = fmt::format("VAR {} = {}.", variables[i], assigned), .place = places[i]});
    }
  }

  std::string prompt_ =
      "Memorize and track the chains of variable assignment hidden in the following text."
      "\n\n{haystack}\n\n{question}";
};

}  // namespace

std::unique_ptr<NeedleTask> make_ruler_task(std::string_view kind) {
  if (kind == "multikey") return std::make_unique<MultiKeyTask>();
  if (kind == "multivalue") return std::make_unique<MultiValueTask>();
  if (kind == "vt") return std::make_unique<VariablesTask>();
  if (kind == "cwe") return make_common_words_task();
  if (kind == "fwe") return make_frequent_words_task();
  return nullptr;
}

}  // namespace sluice::eval
