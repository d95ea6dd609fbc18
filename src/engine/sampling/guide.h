// Guide: where the answer of one sequence is in its grammar, and which tokens may follow.
//
// A member of Sequence, so that it survives preemption. Grammars makes it and has the masks of each
// pass made (mask_order.h); Answers tells it each token. Thread rule: one thread at a time: the
// engine's, but for masks that are being made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "grammar/workshop.h"
#include "sluice/sampling_params.h"

namespace sluice {

// The masks after the numbers of drafts [first, first + is_masked.size()).
struct GuideMasks {
  int64_t first = 0;
  std::vector<int32_t> words;   // of all masks
  std::vector<bool> is_masked;  // by mask; false: nothing is drawn there

  // The mask after `num_drafts` drafts; empty: all tokens are allowed.
  std::span<const int32_t> row(int64_t num_drafts) const;
};

class Guide {
 public:
  struct Parts {
    GrammarOrderPtr order;
    int64_t vocab_size = 0;
    std::vector<int32_t> end_ids = {};          // tokens that end a text
    std::optional<int32_t> thought_begin = {};  // tokens that open and close a thought
    std::optional<int32_t> thought_end = {};
    bool starts_in_thought = false;
  };
  // What `params` bans stays banned.
  Guide(Parts parts, const SamplingParams& params);

  // Whether the next token has to wait for the grammar.
  bool is_waiting() const { return state_ != State::kThought && !order_->is_done(); }
  const GrammarOrder& order() const { return *order_; }

  // A token became part of the text. False if the grammar does not take it, which it has allowed.
  bool append(int32_t token_id) { return go(token_id); }
  // How many of these tokens, from the first on, may follow the text.
  size_t num_allowed(std::span<const int32_t> tokens);
  // Makes the masks after each of the numbers of drafts [first, first + count). False if one of
  // them allows no token. REQUIRES: not waiting; all drafts are allowed.
  bool make_masks(std::span<const int32_t> drafts, int64_t first, int64_t count, GuideMasks& masks);

 private:
  enum class State {
    kBegin,    // a thought may begin, and the grammar
    kThought,  // free, but no end
    kGuided,
  };
  // Takes a token and returns whether it is allowed; what it does is undone by `go_back`.
  bool go(int32_t token_id);
  void go_back(State state, int64_t num_matched);
  bool make_mask(std::span<int32_t> words);
  Matcher& matcher();

  GrammarOrderPtr order_;
  std::unique_ptr<Matcher> matcher_;  // made when it is needed
  int64_t num_matched_ = 0;           // tokens that the matcher has taken
  std::optional<int32_t> thought_begin_;
  std::optional<int32_t> thought_end_;
  State state_;
  int64_t num_words_;
  std::vector<int32_t> end_ids_;
  std::vector<int32_t> allowed_;  // by the request's other parameters; empty: all
};

}  // namespace sluice
