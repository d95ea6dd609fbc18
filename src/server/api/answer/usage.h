// What an answer has cost: tokens and times, and how they are written.
//
// Used by the bodies and streams of answers. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "server/api/answer/answer_delta.h"
#include "server/api/answer/answer_options.h"
#include "tokenizer/tokenizer.h"

namespace sluice::api {

// Where the cached tokens of the prompts were found.
struct CachedPlaces {
  int64_t device = 0;
  int64_t host = 0;
  int64_t disk = 0;
};

// Counts the tokens of a thought at the front of an answer, its tags included, by the bytes of the
// tokens: the count does not depend on how outputs are cut. A thought without an end goes on to the
// last token.
class ThoughtCounter {
 public:
  // Aliasing: `tokenizer` must outlive this object.
  ThoughtCounter(AnswerFormat format, const Tokenizer& tokenizer, bool skip_special);

  void push(int32_t id);
  int64_t num_tokens() const { return state_ == State::kBefore ? 0 : num_tokens_; }

 private:
  enum class State { kBefore, kInside, kAfter };

  void take(char c);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  State state_;
  std::string text_;  // before the thought all of it, inside its end
  int64_t num_tokens_ = 0;
};

struct TokenCounts {
  int64_t prompt = 0;
  int64_t cached = 0;  // of `prompt`
  int64_t generated = 0;
  int64_t thought = 0;  // of `generated`
};

// Adds AnswerOptions::clamped_max_tokens to a usage of any API, where the request's limit did not
// count.
void add_clamp(const AnswerOptions& options, nlohmann::ordered_json& usage);

class UsageCounter {
 public:
  // Aliasing: `options` must outlive this object.
  explicit UsageCounter(const AnswerOptions& options);

  // Counts a part; `num_thought_tokens` are the choice's so far.
  void add(const AnswerDelta& delta, int64_t num_thought_tokens);

  // So far, over all choices. A prompt counts once, whatever n is, and so do its cached
  // tokens, of which the choice that found the fewest tells.
  TokenCounts counts() const;
  // "usage" of OpenAI's completions and chats.
  nlohmann::ordered_json usage() const;

  // "timings" with the names of llama-server, and the places of cached tokens if they are known.
  // The prompts' time ends when each choice had its first token, and the answers' begins with the
  // earliest of these; with one choice one follows the other. The first token of a choice comes
  // with its prompt, so rates of answers do not count it. Rates without a time, and times for each
  // of no tokens, are 0.
  nlohmann::ordered_json timings(const std::optional<CachedPlaces>& places) const;

 private:
  struct Choice {
    bool has_output = false;
    bool has_token = false;
    int64_t num_thought_tokens = 0;
  };

  void add_cached(size_t prompt, int64_t num_tokens);

  const AnswerOptions* options_;
  std::vector<Choice> choices_;
  std::vector<std::optional<int64_t>> cached_;  // by prompt
  int64_t num_prompt_tokens_ = 0;
  int64_t num_cached_tokens_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_first_tokens_ = 0;
  int64_t num_thought_tokens_ = 0;
  std::optional<http::TimePoint> first_token_;       // the earliest of a choice
  std::optional<http::TimePoint> last_first_token_;  // the latest
  std::optional<http::TimePoint> last_token_;
};

}  // namespace sluice::api
