// The recipe of a needle item: a text of exactly so many tokens with a fact hidden at some depth.
//
// Used by needle.cc; knows nothing of the engine beyond a function that counts the tokens of a
// prompt. Deterministic: an item depends on its seed, length, depth and number alone, not on the
// grid that it is part of. Thread rule: a NeedleRecipe belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/needle/templates.h"

namespace sluice::cli {

// The ids of the whole prompt that `user_message` becomes, chat template included.
using PromptEncoder = std::function<std::vector<int32_t>(std::string_view user_message)>;

struct NeedleItem {
  uint64_t seed = 0;  // of this item; with length and depth it makes the item again
  int64_t length_tokens = 0;
  int32_t depth_percent = 0;
  std::string key;
  std::vector<std::string> values;  // all must be in the answer
  std::string expected;             // the whole answer
  std::string user_message;
  std::vector<int32_t> prompt_ids;
};

// Sentences of a text with the tokens that each adds to a prompt.
class Haystack {
 public:
  // Splits behind ".", "!" or "?" before a space and a letter: there the tokens of the pieces are
  // the tokens of the whole.
  // Errors: kInvalidArgument naming `name` when the text has fewer than two sentences.
  Haystack(std::string_view text, std::string_view name, const PromptEncoder& encode);

  size_t num_sentences() const { return sentences_.size(); }
  const std::string& sentence(size_t i) const { return sentences_[i % sentences_.size()]; }
  int64_t num_tokens(size_t i) const { return num_tokens_[i % sentences_.size()]; }
  int64_t total_tokens() const { return total_tokens_; }

 private:
  std::vector<std::string> sentences_;  // without surrounding spaces
  std::vector<int64_t> num_tokens_;     // of " " + sentence
  int64_t total_tokens_ = 0;
};

class NeedleRecipe {
 public:
  NeedleRecipe(NeedleKind kind, std::string prompt, const Haystack& haystack, PromptEncoder encode);

  // The item number `index` of a cell. Its prompt has exactly `length_tokens` tokens: the haystack
  // is whole sentences from a random place on (it starts over at its end), the last of them chosen
  // to fill the length; only if none fits is a last sentence cut.
  // Errors: kInvalidArgument when the length has no room for question and needle.
  NeedleItem make(uint64_t seed, int64_t length_tokens, int32_t depth_percent, int32_t index) const;

 private:
  struct Draft;
  void fill_to(Draft* draft, int64_t num_tokens, size_t attempt) const;
  std::pair<std::string, int64_t> cut_to(size_t first, int64_t num_tokens) const;
  static int64_t total_tokens(const Draft& draft);
  std::string assemble(const Draft& draft) const;

  NeedleKind kind_;
  std::string prompt_;
  const Haystack& haystack_;
  PromptEncoder encode_;
};

// Whether `answer` holds every value of the item, each as a word of its own.
bool is_correct(const NeedleItem& item, std::string_view answer);

}  // namespace sluice::cli
