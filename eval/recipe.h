// Makes needle items: prompts of an exact number of tokens with the facts of a task.
//
// Used by needle.cc; task.h has the tasks. Needs no engine, only a function that encodes a prompt.
// Deterministic: an item depends on its seed, length, depth and index alone, not on the grid that
// it is part of. Thread rule: a NeedleRecipe belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "eval/task.h"

namespace sluice::eval {

// Returns the ids of the whole prompt for `user_message`, chat template included.
using PromptEncoder = std::function<std::vector<int32_t>(std::string_view user_message)>;

// One prompt with its expected answer.
struct NeedleItem {
  uint64_t seed = 0;  // of this item; its length, depth and this make the same item again
  int64_t length_tokens = 0;
  int32_t depth_percent = 0;
  std::string key;
  std::vector<std::string> values;  // the answer must contain all of them
  std::string expected;             // the whole answer
  bool counts_share = false;        // an answer with some of the values has a score above 0
  std::string user_message;
  std::vector<int32_t> prompt_ids;
};

// The sentences of a text, with the number of tokens that each adds to a prompt.
class Haystack {
 public:
  // Splits after ".", "!" or "?" before a space and a letter. There tokenizers do not merge across
  // the border, so the tokens of the pieces add up to those of the whole.
  // Errors: kInvalidArgument naming `name` if the text has fewer than two sentences. Cost: encodes
  // every sentence once.
  Haystack(std::string_view text, std::string_view name, const PromptEncoder& encode);

  // Indices beyond the end start over at the first sentence.
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
  // `haystack` is null for a task that makes its own text. REQUIRES: task and haystack outlive
  // this.
  NeedleRecipe(const NeedleTask& task, const Haystack* haystack, PromptEncoder encode);

  // Makes item `index` of a cell. Its prompt has exactly `length_tokens` tokens: whole sentences of
  // the haystack from a random one on, the last of them chosen to fill the length. If no sentence
  // fits, the last one is cut; if tokens merge in every try, the prompt is a few tokens shorter.
  // A task that makes its own text fills the length with its words.
  // Errors: kInvalidArgument if the length has no room for question and needle.
  NeedleItem make(uint64_t seed, int64_t length_tokens, int32_t depth_percent, int32_t index) const;

 private:
  struct Draft;
  void fit(Draft* draft, NeedleItem* item) const;
  void fill_to(Draft* draft, int64_t num_tokens, size_t attempt) const;
  void fill_from_haystack(Draft* draft, int64_t num_tokens, size_t attempt) const;
  Piece cut_to(size_t first, int64_t num_tokens) const;
  int64_t count_tokens(const std::string& text) const;
  static int64_t total_tokens(const Draft& draft);
  std::string assemble(const Draft& draft) const;

  const NeedleTask& task_;
  const Haystack* haystack_;
  PromptEncoder encode_;
  int64_t base_tokens_;  // of a short sentence alone
};

// The share of the item's values that `answer` contains, each as a whole word; if the item does not
// count shares, 1 for all values and else 0. A share ignores the case of letters, as RULER's
// string_match_all.
double score(const NeedleItem& item, std::string_view answer);

// True if `answer` contains every value of the item, each as a whole word.
bool is_correct(const NeedleItem& item, std::string_view answer);

}  // namespace sluice::eval
