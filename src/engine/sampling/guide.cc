// Drafts go through the matcher and back.
#include "engine/sampling/guide.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

void set_bit(std::span<int32_t> words, int32_t id, bool value) {
  const auto bit = static_cast<int32_t>(uint32_t{1} << (id % 32));
  int32_t& word = words[static_cast<size_t>(id / 32)];
  word = value ? word | bit : word & ~bit;
}

// The tokens that the parameters leave, as bits; empty if they ban none.
std::vector<int32_t> allowed_by(const SamplingParams& params, int64_t num_words) {
  std::vector<int32_t> words;
  if (params.allowed_token_ids) {
    words.assign(static_cast<size_t>(num_words), 0);
    for (const int32_t id : *params.allowed_token_ids) set_bit(words, id, true);
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (!std::isinf(bias)) continue;
    if (words.empty()) words.assign(static_cast<size_t>(num_words), -1);
    set_bit(words, id, false);
  }
  return words;
}

}  // namespace

Guide::Guide(Parts parts, const SamplingParams& params)
    : order_(std::move(parts.order)),
      thought_begin_(parts.thought_begin),
      thought_end_(parts.thought_end),
      state_(!parts.thought_end        ? State::kGuided
             : parts.starts_in_thought ? State::kThought
                                       : State::kBegin),
      num_words_((parts.vocab_size + 31) / 32),
      end_ids_(std::move(parts.end_ids)),
      allowed_(allowed_by(params, num_words_)) {}

Matcher& Guide::matcher() {
  if (!matcher_) matcher_ = order_->grammar()->make_matcher();
  return *matcher_;
}

// A thought is free; the token that closes it is a part of no grammar.
bool Guide::go(int32_t token_id) {
  if (state_ == State::kThought) {
    if (token_id == thought_end_) state_ = State::kGuided;
    return true;
  }
  if (state_ == State::kBegin && token_id == thought_begin_) {
    state_ = State::kThought;
    return true;
  }
  if (order_->is_done() && !matcher().has_ended() && matcher().accept(token_id)) {
    state_ = State::kGuided;
    ++num_matched_;
    return true;
  }
  return false;
}

// Rolls the matcher back by what it took since.
void Guide::go_back(State state, int64_t num_matched) {
  if (num_matched_ > num_matched) matcher().rollback(num_matched_ - num_matched);
  num_matched_ = num_matched;
  state_ = state;
}

size_t Guide::num_allowed(std::span<const int32_t> tokens) {
  const State state = state_;
  const int64_t num_matched = num_matched_;
  size_t count = 0;
  // What follows the last of them needs a mask, too.
  while (count < tokens.size() && go(tokens[count]) && !is_waiting()) ++count;
  go_back(state, num_matched);
  return count;
}

// Each mask is that of the text with the drafts before it. Cost: a mask takes microseconds, the
// first ones after a compilation up to some milliseconds.
bool Guide::make_masks(std::span<const int32_t> drafts, int64_t first, int64_t count,
                       GuideMasks& masks) {
  const State state = state_;
  const int64_t num_matched = num_matched_;
  masks.first = first;
  masks.words.resize(static_cast<size_t>(count * num_words_));
  masks.is_masked.assign(static_cast<size_t>(count), false);
  bool leaves_token = true;
  for (int64_t i = 0; i < first + count; ++i) {
    if (i > 0) SLUICE_CHECK(go(drafts[static_cast<size_t>(i - 1)]), "draft {}", i - 1);
    // Nothing follows an end; the row is not read.
    const bool has_ended = matcher_ && matcher_->has_ended();
    if (i < first || has_ended) continue;
    const auto row = static_cast<size_t>(i - first);
    const auto num_words = static_cast<size_t>(num_words_);
    const auto words = std::span(masks.words).subspan(row * num_words, num_words);
    leaves_token = make_mask(words) && leaves_token;
    masks.is_masked[row] = true;
  }
  go_back(state, num_matched);
  return leaves_token;
}

// What may follow, less what the request bans. A thought ends with its own token, so that every
// answer that ends has its structure.
bool Guide::make_mask(std::span<int32_t> words) {
  const bool is_free = state_ == State::kThought;
  std::ranges::fill(words, is_free ? -1 : 0);
  if (!is_free) matcher().fill_mask(words);
  for (const int32_t id : end_ids_) {
    if (is_free) set_bit(words, id, false);
  }
  if (state_ == State::kBegin && thought_begin_) set_bit(words, *thought_begin_, true);
  int32_t any = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!allowed_.empty()) words[i] &= allowed_[i];
    any |= words[i];
  }
  return any != 0;
}

// A row after an end has none.
std::span<const int32_t> GuideMasks::row(int64_t num_drafts) const {
  const auto index = static_cast<size_t>(num_drafts - first);
  if (index >= is_masked.size() || !is_masked[index]) return {};
  const size_t num_words = words.size() / is_masked.size();
  return std::span(words).subspan(index * num_words, num_words);
}

}  // namespace sluice
