// RateMeter: bytes per second of transfers that may overlap; and the rule that uses the rate.
//
// Used by block_store; the rule by whoever decides between reading KV and computing it.
// Thread rule: RateMeter has a mutex; is_worth_reading is a pure function.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace sluice {

// The bytes of transfers over the time in which at least one was running: two at once that take a
// second together count as one second. Older time counts less: each `kHalfLife` of transfers halves
// its weight, so that the rate follows a disk that becomes slow. After `kForgotten` without a
// transfer the rate is unknown again: a disk that was slow once would otherwise never be asked
// again.
class RateMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::seconds kHalfLife{10};
  static constexpr std::chrono::minutes kForgotten{5};

  void begin(Time now);
  // Ends a transfer that has begun; `num_bytes` may be 0.
  void end(Time now, uint64_t num_bytes);
  // 0: unknown.
  double bytes_per_second(Time now) const;

 private:
  void count_time(Time now);

  mutable std::mutex mutex_;
  int32_t num_running_ = 0;
  Time last_{};         // up to which time is counted, while transfers run; else the last end
  double seconds_ = 0;  // both weighted
  double bytes_ = 0;
};

// What is known about the alternatives.
struct ReadOrCompute {
  uint64_t num_bytes = 0;  // stored KV of the tokens
  int64_t num_tokens = 0;
  double read_bytes_per_second = 0;      // 0: unknown
  double prefill_tokens_per_second = 0;  // at this position; 0: unknown
};

// num_bytes / read rate < num_tokens / prefill rate: whether reading is faster. True while a rate
// is unknown: the first read measures it.
bool is_worth_reading(const ReadOrCompute& choice);

}  // namespace sluice
