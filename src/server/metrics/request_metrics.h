// RequestMetrics: counters and histograms over the requests that reached the engine.
//
// RequestLife adds to it, the page of metrics and the status line read it. Made once the model is
// loaded. Thread rule: any thread, any member, any time; instruments.h says why no call waits.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "server/metrics/exposition.h"
#include "server/metrics/instruments.h"

namespace sluice::metrics {

// How a request ended, with the names that vLLM gives to them.
enum class Outcome {
  kStop,    // an end token, a stop id or a stop string
  kLength,  // max_tokens
  kAbort,   // cancelled, or ended by a drain
  kError,
};
inline constexpr size_t kNumOutcomes = 4;

std::string_view outcome_name(Outcome outcome);  // "stop", "length", "abort", "error"

// Since the server began. Each number grows from one reading to the next, and so do their sums,
// also while requests add to them.
struct TokenTotals {
  int64_t num_computed = 0;  // of prompts
  int64_t num_cached = 0;    // of prompts: found by prefix caching
  int64_t num_stored = 0;    // of prompts: read from the KV store
  int64_t num_missed = 0;    // of prompts: looked up in the prefix cache and not found
  int64_t num_generated = 0;

  int64_t num_prompt() const { return num_computed + num_cached + num_stored; }
  int64_t num_queried() const { return num_cached + num_missed; }
};

class RequestMetrics {
 public:
  // `max_model_len` is the last bound of the histograms of tokens.
  explicit RequestMetrics(int64_t max_model_len);

  TokenTotals totals() const;
  void append_to(Exposition& page) const;

 private:
  friend class RequestLife;

  void append_counters(Exposition& page) const;

  // Tokens. Those of prompts are counted while the prompt is computed, so that their rate is the
  // true one during a prompt of minutes.
  Counter computed_tokens_;
  Counter cached_device_tokens_;
  Counter cached_host_tokens_;
  Counter stored_tokens_;
  Counter missed_tokens_;
  Counter generated_tokens_;
  Gauge prefill_remaining_tokens_;
  std::array<Counter, kNumOutcomes> ended_;  // requests, by Outcome

  // Seconds.
  Histogram first_token_;
  Histogram token_interval_;
  Histogram mean_token_interval_;
  Histogram whole_;
  Histogram queue_;
  Histogram prefill_;
  Histogram decode_;
  Histogram inference_;
  // Tokens and choices.
  Histogram num_prompt_tokens_;
  Histogram num_generated_tokens_;
  Histogram choices_;
  Histogram max_tokens_;
};

}  // namespace sluice::metrics
