// Random numbers for needle items. The distributions of <random> differ between standard libraries;
// these numbers are equal on every machine.
//
// Used by the recipe and the tasks. Thread rule: a Random belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/mix.h"

namespace sluice::eval {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return split_mix(state_); }
  // In [0, n). The bias of the remainder is below 2^-40 for the n we have.
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }

 private:
  uint64_t state_;
};

// A number of `num_digits` digits without a leading zero.
inline std::string random_digits(int32_t num_digits, Random* random) {
  std::string digits(1, static_cast<char>('1' + random->below(9)));
  while (static_cast<int32_t>(digits.size()) < num_digits) {
    digits += static_cast<char>('0' + random->below(10));
  }
  return digits;
}

// `num_letters` letters from `first` on, 26 of them.
inline std::string random_letters(int32_t num_letters, char first, Random* random) {
  std::string letters;
  for (int32_t i = 0; i < num_letters; ++i) {
    letters += static_cast<char>(first + static_cast<char>(random->below(26)));
  }
  return letters;
}

// Draws texts and leaves out those that it has returned before.
class DistinctTexts {
 public:
  // The first result of `draw` that is new. REQUIRES: there is one.
  template <typename Draw>
  std::string next(const Draw& draw) {
    std::string text = draw();
    while (!seen_.insert(text).second) text = draw();
    return text;
  }
  template <typename Draw>
  std::vector<std::string> next(size_t num_texts, const Draw& draw) {
    std::vector<std::string> texts;
    while (texts.size() < num_texts) texts.push_back(next(draw));
    return texts;
  }
  void leave_out(const std::vector<std::string>& texts) {
    seen_.insert(texts.begin(), texts.end());
  }

 private:
  std::unordered_set<std::string> seen_;
};

// Source: Fisher and Yates, in the form of Durstenfeld, 1964.
template <typename T>
void shuffle(std::vector<T>* list, Random* random) {
  for (size_t i = list->size(); i > 1; --i) std::swap((*list)[i - 1], (*list)[random->below(i)]);
}

}  // namespace sluice::eval
