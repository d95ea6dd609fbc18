// Weighted sums of bytes and seconds.
#include "store/rate_meter.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice {
namespace {

double seconds_between(RateMeter::Time from, RateMeter::Time to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

}  // namespace

// The first of several that overlap starts the clock.
void RateMeter::begin(Time now) {
  const std::lock_guard lock(mutex_);
  if (num_running_ > 0) {
    count_time(now);
  } else if (now - last_ > kForgotten) {
    seconds_ = bytes_ = 0;
  }
  last_ = now;
  ++num_running_;
}

void RateMeter::end(Time now, uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(num_running_ > 0, "end of a transfer that has not begun");
  count_time(now);
  last_ = now;
  bytes_ += static_cast<double>(num_bytes);
  --num_running_;
}

double RateMeter::bytes_per_second(Time now) const {
  const std::lock_guard lock(mutex_);
  if (num_running_ == 0 && now - last_ > kForgotten) return 0;
  return seconds_ > 0 ? bytes_ / seconds_ : 0;
}

// Weighs what was counted before by the time that is added now.
void RateMeter::count_time(Time now) {
  const double seconds = seconds_between(last_, now);
  const double weight = std::exp2(-seconds / std::chrono::duration<double>(kHalfLife).count());
  bytes_ *= weight;
  seconds_ = seconds_ * weight + seconds;
}

bool is_worth_reading(const ReadOrCompute& choice) {
  if (choice.read_bytes_per_second <= 0 || choice.prefill_tokens_per_second <= 0) return true;
  return static_cast<double>(choice.num_bytes) / choice.read_bytes_per_second <
         static_cast<double>(choice.num_tokens) / choice.prefill_tokens_per_second;
}

}  // namespace sluice
