// MaskOrder: the masks of one sequence for one pass, made while the device computes the logits.
//
// Grammars gives it to MaskWorkers before the pass; Sampler waits for it between the decoder and
// the draw. One that is late is kept: the sequence gives no token in that pass, and takes the masks
// in the first pass after they are made. Thread rule: a worker calls make(), all else is the
// engine's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/guide.h"

namespace sluice {

class MaskOrder {
 public:
  using Clock = std::chrono::steady_clock;
  // A request with a mask that takes longer ends with an error.
  static constexpr std::chrono::seconds kLongest{1};

  // What the masks follow: the drafts of [first, first + count) after `num_tokens` tokens.
  struct Place {
    int64_t num_tokens = 0;
    std::vector<int32_t> drafts = {};
    int64_t first = 0;
    int64_t count = 0;
  };
  // REQUIRES: as Guide::make_masks. Until it is done, nothing else uses the guide.
  MaskOrder(std::shared_ptr<Guide> guide, Place place)
      : guide_(std::move(guide)), place_(std::move(place)) {}

  // On a worker: its time begins. The time in the queue does not count, since it is that of others.
  void begin() { began_at_.store(Clock::now(), std::memory_order_release); }
  // On a worker: makes the masks. Does not throw.
  void make();

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  // Whether it is done by then.
  bool wait_until(Clock::time_point time);
  // Whether it took too long.
  bool is_overdue() const { return !is_done() && Clock::now() >= deadline(); }
  // When it is overdue; at least kLongest from now until it has begun.
  Clock::time_point deadline() const {
    const Clock::time_point began = began_at_.load(std::memory_order_acquire);
    return (began == Clock::time_point() ? Clock::now() + kLongest : began) + kLongest;
  }

  // The mask after `num_drafts` drafts; empty: all tokens are allowed. REQUIRES: done, no error.
  std::span<const int32_t> mask(int64_t num_drafts) const { return masks_.row(num_drafts); }
  // Why the sequence cannot go on; empty: it can. REQUIRES: done.
  const std::string& error() const { return error_; }

  // Whether it has the masks of a place.
  bool covers(const Place& place) const;
  // How many of the drafts after `num_tokens` tokens it was made for.
  size_t num_alike(int64_t num_tokens, std::span<const int32_t> drafts) const;

  // Whether the newest pass drew without it.
  void set_late(bool is_late) { is_late_ = is_late; }
  bool was_late() const { return is_late_; }
  // Whether the pass gives the sequence a token. REQUIRES: the pass has drawn.
  bool gives_token() const { return !is_late_ && error_.empty(); }

 private:
  const std::shared_ptr<Guide> guide_;  // lives as long as a worker uses it
  const Place place_;
  std::atomic<Clock::time_point> began_at_ = Clock::time_point();
  GuideMasks masks_;
  std::string error_;
  bool is_late_ = false;
  std::atomic<bool> is_done_ = false;  // what make() writes never changes after it
  std::mutex mutex_;                   // of the wait
  std::condition_variable done_;
};

}  // namespace sluice
