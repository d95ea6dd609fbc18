// What a needle test hides in a text and asks: one class for each kind of task.
//
// The recipe (recipe.h) draws the facts of an item from a task and fits the text to a length.
// Implemented by TemplateTask below and by the kinds of ruler_tasks.h. Thread rule: a task is
// constant after its construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "eval/random.h"
#include "eval/templates.h"

namespace sluice::eval {

// A sentence to hide.
struct HiddenSentence {
  std::string text;
  double place = 0;  // the share of the haystack before it, [0, 1]
};

// The random part of an item.
struct NeedleFacts {
  std::string key;                  // what the question asks about; "" if it has no key
  std::vector<std::string> values;  // what the answer must contain
  std::string question;
  std::string expected;                   // the whole answer
  std::vector<HiddenSentence> sentences;  // in order of their places
};

// A part of a text, with the number of tokens that it adds to a prompt.
struct Piece {
  std::string text;
  int64_t num_tokens = 0;
};

// Returns the number of tokens that " " and `text` add to a prompt.
using TokenCounter = std::function<int64_t(const std::string& text)>;

// An order for a text that a task makes by itself.
struct TextOrder {
  const NeedleFacts& facts;
  int64_t num_tokens = 0;  // upper bound of the sum of the pieces
  size_t attempt = 0;      // counts the tries to reach the exact length of one item
  Random random;           // the state after the draw of the facts
};

class NeedleTask {
 public:
  virtual ~NeedleTask() = default;

  // The user message, with the placeholders {haystack} and {question}.
  virtual const std::string& prompt() const = 0;
  // Draws the facts of one item. `depth` in [0, 1] is the place of the sentence that the item is
  // about; without a haystack it has no effect.
  virtual NeedleFacts draw(double depth, Random* random) const = 0;
  // An upper bound of the tokens of an answer.
  virtual int64_t answer_room(const TokenCounter& num_tokens) const = 0;

  // True if an answer with some of the values has a score above 0.
  virtual bool counts_share() const { return true; }
  // False if the task makes its own text; then depths have no meaning.
  virtual bool has_haystack() const { return true; }
  // Makes the text of a task without a haystack, as pieces that a space separates. Empty if the
  // tokens have no room for it.
  virtual std::vector<Piece> make_text(const TextOrder& /*order*/,
                                       const TokenCounter& /*num_tokens*/) const {
    return {};
  }
};

// Room for a model that answers with a few more words than expected.
inline constexpr int64_t kAnswerSlackTokens = 8;

// A kind of a templates file: one fact, or several with one key. An answer is right or wrong.
class TemplateTask final : public NeedleTask {
 public:
  // `prompt` is that of the file.
  TemplateTask(NeedleKind kind, std::string prompt);

  const std::string& prompt() const override { return prompt_; }
  NeedleFacts draw(double depth, Random* random) const override;
  int64_t answer_room(const TokenCounter& num_tokens) const override;
  bool counts_share() const override { return false; }

 private:
  NeedleKind kind_;
  std::string prompt_;
};

// The place of sentence `i` of `num`: they are spread evenly over the text after `depth`.
inline double spread(double depth, size_t i, size_t num) {
  return depth + (1 - depth) * (static_cast<double>(i) / static_cast<double>(num));
}

}  // namespace sluice::eval
