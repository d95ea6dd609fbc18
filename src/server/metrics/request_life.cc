#include "server/metrics/request_life.h"

#include <algorithm>

#include "core/error.h"

namespace sluice::metrics {
namespace {

double seconds(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

RequestLife::RequestLife(RequestMetrics& metrics, const RequestFacts& facts)
    : metrics_(metrics), facts_(facts) {
  metrics_.prefill_remaining_tokens_.add(facts.num_prompt_tokens);
}

RequestLife::~RequestLife() {
  if (!outcome_) metrics_.prefill_remaining_tokens_.add(num_done_ - facts_.num_prompt_tokens);
}

void RequestLife::started(TimePoint now, const CachedTokens& cached) {
  if (started_) return;
  started_ = now;
  num_cached_ = cached.total();
  SLUICE_CHECK(num_cached_ <= facts_.num_prompt_tokens);
  metrics_.queue_.observe(seconds(facts_.queued, now));
  metrics_.missed_tokens_.add(facts_.num_prompt_tokens - num_cached_);
  metrics_.cached_device_tokens_.add(cached.device);
  metrics_.cached_host_tokens_.add(cached.host);
  metrics_.prefill_remaining_tokens_.add(-num_cached_);
  num_done_ = num_cached_;
}

// A request that was preempted may read what it had computed before: that counts as computed.
void RequestLife::stored(int64_t num_stored) {
  SLUICE_CHECK(started_);
  const int64_t added = std::min(num_stored - num_stored_, facts_.num_prompt_tokens - num_done_);
  if (added <= 0) return;
  metrics_.stored_tokens_.add(added);
  metrics_.prefill_remaining_tokens_.add(-added);
  num_stored_ += added;
  num_done_ += added;
}

void RequestLife::prompt_done(int64_t num_done) {
  SLUICE_CHECK(started_ && num_done <= facts_.num_prompt_tokens);
  if (num_done <= num_done_) return;
  metrics_.computed_tokens_.add(num_done - num_done_);
  metrics_.prefill_remaining_tokens_.add(num_done_ - num_done);
  num_done_ = num_done;
}

void RequestLife::generated(TimePoint now, int64_t num_tokens) {
  SLUICE_CHECK(started_ && num_tokens > 0);
  if (num_generated_ == 0) {
    prompt_done(facts_.num_prompt_tokens);
    first_token_ = now;
    metrics_.first_token_.observe(seconds(facts_.arrived, now));
    metrics_.prefill_.observe(seconds(*started_, now));
  } else {
    const double interval = seconds(last_token_, now) / static_cast<double>(num_tokens);
    metrics_.token_interval_.observe(interval, num_tokens);
  }
  last_token_ = now;
  num_generated_ += num_tokens;
  metrics_.generated_tokens_.add(num_tokens);
}

void RequestLife::ended(TimePoint now, Outcome outcome) {
  SLUICE_CHECK(!outcome_);
  outcome_ = outcome;
  metrics_.prefill_remaining_tokens_.add(num_done_ - facts_.num_prompt_tokens);
  metrics_.ended_[static_cast<size_t>(outcome)].add();
  metrics_.whole_.observe(seconds(facts_.arrived, now));
  metrics_.num_prompt_tokens_.observe(static_cast<double>(facts_.num_prompt_tokens));
  metrics_.num_generated_tokens_.observe(static_cast<double>(num_generated_));
  metrics_.max_tokens_.observe(static_cast<double>(facts_.max_tokens));
  if (facts_.n) metrics_.choices_.observe(static_cast<double>(*facts_.n));
  if (num_generated_ > 0) observe_phases();
}

void RequestLife::observe_phases() const {
  const double decode = seconds(first_token_, last_token_);
  metrics_.decode_.observe(decode);
  metrics_.inference_.observe(seconds(*started_, last_token_));
  if (num_generated_ > 1) {
    metrics_.mean_token_interval_.observe(decode / static_cast<double>(num_generated_ - 1));
  }
}

RequestSummary RequestLife::summary() const {
  RequestSummary summary{.num_prompt_tokens = facts_.num_prompt_tokens,
                         .num_cached_tokens = num_cached_ + num_stored_,
                         .num_stored_tokens = num_stored_,
                         .num_generated_tokens = num_generated_,
                         .outcome = outcome_};
  if (started_) summary.queue_s = seconds(facts_.queued, *started_);
  if (num_generated_ > 0) {
    summary.prefill_s = seconds(*started_, first_token_);
    if (outcome_) summary.decode_s = seconds(first_token_, last_token_);
  }
  return summary;
}

}  // namespace sluice::metrics
