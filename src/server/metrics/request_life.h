// RequestLife: what happens to one request in the engine, with times; fills RequestMetrics.
//
//   RequestLife life(metrics, {.arrived = ..., .queued = now, .num_prompt_tokens = 10, ...});
//   life.started(now, {.device = 4});   // each event that the request gets: later calls do nothing
//   life.prompt_done(8);
//   life.generated(now, 1);
//   life.ended(now, Outcome::kStop);
//
// Whoever receives the engine's events of a request has one; each choice of an API's request is a
// request here. It has no clock: times are given. Thread rule: one thread at a time; the metrics
// outlive it. No call allocates, and `generated` costs three atomic additions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/metrics/request_metrics.h"

namespace sluice::metrics {

using TimePoint = std::chrono::steady_clock::time_point;

struct RequestFacts {
  TimePoint arrived;  // the server had the whole request
  TimePoint queued;   // it was given to the engine
  int64_t num_prompt_tokens = 0;
  int64_t max_tokens = 0;
  std::optional<int64_t> n;  // for one choice of each prompt, so that it is observed once
};

// Prompt tokens that prefix caching found, by the memory that held them.
struct CachedTokens {
  int64_t device = 0;
  int64_t host = 0;

  int64_t total() const { return device + host; }
};

// For the log. A phase that has not ended is empty.
struct RequestSummary {
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // with those that were read from the KV store
  int64_t num_stored_tokens = 0;  // these alone
  int64_t num_generated_tokens = 0;
  std::optional<double> queue_s;    // from the queue to the start
  std::optional<double> prefill_s;  // from the start to the first token
  std::optional<double> decode_s;   // from the first token to the last
  std::optional<Outcome> outcome;
};

// REQUIRES, for all members: times do not fall from call to call.
class RequestLife {
 public:
  RequestLife(RequestMetrics& metrics, const RequestFacts& facts);
  // Without `ended` before it, as if the request had never been queued, except for tokens that are
  // counted: so a request that the engine refuses leaves no trace.
  ~RequestLife();
  RequestLife(const RequestLife&) = delete;
  RequestLife& operator=(const RequestLife&) = delete;

  // The request has KV memory, some of it from the prefix cache. Only the first call has an effect:
  // a request that starts again after a preemption has started before.
  void started(TimePoint now, const CachedTokens& cached);

  // This many tokens of the prompt were read from the KV store, after those of the prefix cache;
  // fewer than before has no effect. REQUIRES: started.
  void stored(int64_t num_stored);

  // This many tokens of the prompt are computed, cached or read; fewer than before has no effect.
  // REQUIRES: started.
  void prompt_done(int64_t num_done);

  // A delta with this many tokens, at least one; they share the time since the delta before.
  // REQUIRES: started.
  void generated(TimePoint now, int64_t num_tokens);

  // The last call.
  void ended(TimePoint now, Outcome outcome);

  RequestSummary summary() const;

 private:
  void observe_phases() const;

  RequestMetrics& metrics_;
  const RequestFacts facts_;
  std::optional<TimePoint> started_;
  TimePoint first_token_;  // of these two: valid once num_generated_ > 0
  TimePoint last_token_;
  int64_t num_cached_ = 0;
  int64_t num_stored_ = 0;
  int64_t num_done_ = 0;  // prompt tokens
  int64_t num_generated_ = 0;
  std::optional<Outcome> outcome_;
};

}  // namespace sluice::metrics
