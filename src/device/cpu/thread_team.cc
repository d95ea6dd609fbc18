// ThreadTeam: rounds of work by a worker and its helpers.
//
// The worker opens a round with a release, helpers acquire it, run their share and report back with
// a release that the worker acquires. All of it stays inside one stream, where order is wanted.
#include "device/cpu/thread_team.h"

#include <system_error>

#include <pthread.h>

#include "core/error.h"
#include "device/cpu/waiting.h"

namespace sluice {
namespace {

constexpr uint32_t kHelperSleeps = 1;                  // bit of round_
constexpr uint32_t kRoundStep = 2;                     // round_ counts in the bits above
constexpr uint32_t kWorkerSleeps = uint32_t{1} << 31;  // bit of num_busy_

}  // namespace

ThreadTeam::ThreadTeam(int num_threads, const std::string& name) : num_threads_(num_threads) {
  SLUICE_CHECK(num_threads >= 1, "a team of {} threads", num_threads);
  try {
    for (int i = 1; i < num_threads; ++i) {
      helpers_.emplace_back([this, i] { run_helper(i); });
      pthread_setname_np(helpers_.back().native_handle(), name.substr(0, 15).c_str());
    }
  } catch (const std::system_error& error) {
    stop();
    fail(ErrorCode::kDevice, "cannot start thread {} of {} for stream '{}': {}; use fewer threads",
         helpers_.size() + 2, num_threads, name, error.what());
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  stopping_ = true;
  begin_round();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::dispatch(Job job, void* context) {
  job_ = job;
  context_ = context;
  num_busy_.store(static_cast<uint32_t>(num_threads_ - 1), std::memory_order_relaxed);
  begin_round();
  run_share(0);
  await_helpers();
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

void ThreadTeam::begin_round() {
  const uint32_t before = round_.load(std::memory_order_relaxed) & ~kHelperSleeps;
  // Clears the sleep bit: whoever sleeps is woken now, and sets it again before the next sleep.
  const uint32_t old = round_.exchange(before + kRoundStep, std::memory_order_release);
  if ((old & kHelperSleeps) != 0) futex_wake_all(round_);
}

void ThreadTeam::run_share(int thread_index) noexcept {
  try {
    job_(context_, thread_index, num_threads_);
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadTeam::run_helper(int thread_index) {
  uint32_t seen = 0;
  for (;;) {
    seen = await_round(seen);
    if (stopping_) return;
    run_share(thread_index);
    const uint32_t old = num_busy_.fetch_sub(1, std::memory_order_acq_rel);
    if (old == (kWorkerSleeps | 1)) futex_wake_all(num_busy_);  // the last one out
  }
}

// Returns the number of the round after `seen`. A round waits for all helpers, so none is missed.
uint32_t ThreadTeam::await_round(uint32_t seen) {
  uint32_t round = 0;
  const auto opened = [&] {
    round = round_.load(std::memory_order_acquire);
    return (round & ~kHelperSleeps) != seen;
  };
  if (spin_until(opened)) return round & ~kHelperSleeps;
  while (!opened()) {
    if (round == (seen | kHelperSleeps) ||
        round_.compare_exchange_weak(round, seen | kHelperSleeps, std::memory_order_relaxed)) {
      futex_wait(round_, seen | kHelperSleeps);
    }
  }
  return round & ~kHelperSleeps;
}

void ThreadTeam::await_helpers() {
  uint32_t busy = 0;
  const auto finished = [&] {
    busy = num_busy_.load(std::memory_order_acquire);
    return (busy & ~kWorkerSleeps) == 0;
  };
  if (spin_until(finished)) return;
  while (!finished()) {
    const uint32_t sleeping = busy | kWorkerSleeps;
    if (busy == sleeping ||
        num_busy_.compare_exchange_weak(busy, sleeping, std::memory_order_relaxed)) {
      futex_wait(num_busy_, sleeping);
    }
  }
}

}  // namespace sluice
