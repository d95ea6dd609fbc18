#include "server/api/answer/usage.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/json_type.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpenThought = "<think>", kCloseThought = "</think>";
constexpr std::string_view kSpace = " \t\n\r";

double milliseconds(http::Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double per_second(int64_t count, double ms) {
  return ms > 0 ? static_cast<double>(count) * 1e3 / ms : 0.0;
}

double per_token(int64_t count, double ms) {
  return count > 0 ? ms / static_cast<double>(count) : 0.0;
}

}  // namespace

ThoughtCounter::ThoughtCounter(AnswerFormat format, const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special),
      state_(!format.thinks             ? State::kAfter
             : format.starts_in_thought ? State::kInside
                                        : State::kBefore) {}

void ThoughtCounter::push(int32_t id) {
  if (state_ == State::kAfter) return;
  ++num_tokens_;
  if (skip_special_ && tokenizer_->is_special(id)) return;
  for (const char c : tokenizer_->token_bytes(id)) take(c);
}

void ThoughtCounter::take(char c) {
  if (state_ == State::kAfter) return;
  if (state_ == State::kBefore && text_.empty() && kSpace.find(c) != kSpace.npos) return;
  text_ += c;
  if (state_ == State::kInside) {
    if (text_.size() > kCloseThought.size()) text_.erase(0, 1);
    if (text_ == kCloseThought) state_ = State::kAfter;
  } else if (text_ == kOpenThought) {
    state_ = State::kInside;
  } else if (!kOpenThought.starts_with(text_)) {
    state_ = State::kAfter;
    num_tokens_ = 0;
  }
}

void add_clamp(const AnswerOptions& options, Json& usage) {
  if (options.clamped_max_tokens) usage["clamped_max_tokens"] = *options.clamped_max_tokens;
}

UsageCounter::UsageCounter(const AnswerOptions& options)
    : options_(&options), choices_(options.num_choices()), cached_(options.prompts.size()) {
  for (const AnswerPrompt& prompt : options.prompts) {
    num_prompt_tokens_ += static_cast<int64_t>(prompt.ids.size());
  }
}

void UsageCounter::add(const AnswerDelta& delta, int64_t num_thought_tokens) {
  Choice& choice = choices_[delta.choice];
  num_tokens_ += static_cast<int64_t>(delta.output.token_ids.size());
  if (!delta.output.token_ids.empty() && !std::exchange(choice.has_token, true)) {
    ++num_first_tokens_;
  }
  num_thought_tokens_ += num_thought_tokens - choice.num_thought_tokens;
  choice.num_thought_tokens = num_thought_tokens;
  add_cached(delta.choice / options_->n, delta.output.num_cached_tokens);
  if (!std::exchange(choice.has_output, true)) {
    first_token_ = std::min(first_token_.value_or(delta.first_time), delta.first_time);
    last_first_token_ = std::max(last_first_token_.value_or(delta.first_time), delta.first_time);
  }
  last_token_ = std::max(last_token_.value_or(delta.last_time), delta.last_time);
}

void UsageCounter::add_cached(size_t prompt, int64_t num_tokens) {
  const int64_t before = cached_[prompt].value_or(0);
  const int64_t after = cached_[prompt] ? std::min(before, num_tokens) : num_tokens;
  num_cached_tokens_ += after - before;
  cached_[prompt] = after;
}

TokenCounts UsageCounter::counts() const {
  return {.prompt = num_prompt_tokens_,
          .cached = num_cached_tokens_,
          .generated = num_tokens_,
          .thought = num_thought_tokens_};
}

Json UsageCounter::usage() const {
  Json json;
  json["prompt_tokens"] = num_prompt_tokens_;
  json["completion_tokens"] = num_tokens_;
  json["total_tokens"] = num_prompt_tokens_ + num_tokens_;
  json["prompt_tokens_details"]["cached_tokens"] = num_cached_tokens_;
  json["completion_tokens_details"]["reasoning_tokens"] = num_thought_tokens_;
  add_clamp(*options_, json);
  return json;
}

Json UsageCounter::timings(const std::optional<CachedPlaces>& places) const {
  const int64_t num_computed = num_prompt_tokens_ - num_cached_tokens_;
  // What was made between the first tokens and the last: 2 tokens need one step of decode.
  const int64_t num_decoded = num_tokens_ - num_first_tokens_;
  double prompt_ms = 0, predicted_ms = 0;
  if (first_token_) {
    prompt_ms = milliseconds(*last_first_token_ - options_->queued);
    predicted_ms = milliseconds(*last_token_ - *first_token_);
  }
  Json json;
  json["cache_n"] = num_cached_tokens_;
  json["prompt_n"] = num_computed;
  json["prompt_ms"] = prompt_ms;
  json["prompt_per_token_ms"] = per_token(num_computed, prompt_ms);
  json["prompt_per_second"] = per_second(num_computed, prompt_ms);
  json["predicted_n"] = num_tokens_;
  json["predicted_ms"] = predicted_ms;
  json["predicted_per_token_ms"] = per_token(num_decoded, predicted_ms);
  json["predicted_per_second"] = per_second(num_decoded, predicted_ms);
  if (places) {
    json["cache"]["device"] = places->device;
    json["cache"]["host"] = places->host;
    json["cache"]["disk"] = places->disk;
  }
  return json;
}

}  // namespace sluice::api
