// ThreadTeam: rounds of work by a worker and its helpers.
//
// The worker publishes a job and then its number of tasks. A thread that has taken a task from
// num_left_ may read the job until it has reported the task in pending_. A late helper finds no
// task and touches nothing, and the worker waits for tasks that were taken, not for threads. The
// worker's release of num_left_ is acquired by a helper with its task; the helper's release of
// pending_ is acquired by the worker. All of this stays inside one stream, which is ordered anyway.
#include "device/host/thread_team.h"

#include <system_error>
#include <utility>

#include <pthread.h>

#include "core/clock.h"
#include "core/error.h"
#include "device/host/waiting.h"

namespace sluice {
namespace {

constexpr uint32_t kHelperSleeps = 1;                      // bit of round_
constexpr uint32_t kRoundStep = 2;                         // round_ counts in the bits above
constexpr uint32_t kTeamWorkerSleeps = uint32_t{1} << 31;  // bit of pending_
// Before the worker waits, pending_ is minus the number of reported tasks, modulo 2^32. The limit
// on tasks keeps those values apart from the sleep bit's.
constexpr int64_t kMaxTasks = int64_t{1} << 29;

}  // namespace

ThreadTeam::ThreadTeam(int num_threads, const std::string& name) : num_threads_(num_threads) {
  SLUICE_CHECK(num_threads >= 1, "a team of {} threads", num_threads);
  try {
    for (int i = 1; i < num_threads; ++i) {
      helpers_.emplace_back([this] { run_helper(); });
      pthread_setname_np(helpers_.back().native_handle(), name.substr(0, 15).c_str());
    }
  } catch (const std::system_error& error) {
    stop();
    fail(
        ErrorCode::kDoesNotFit,
        "cannot start thread {} of {} for stream '{}': {}; lower --threads, or raise the limits of "
        "memory and processes (ulimit -v and -u)",
        helpers_.size() + 2, num_threads, name, error.what());
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  begin_round();
  for (std::thread& helper : helpers_) helper.join();
}

// Runs one round with helpers and records what it gained.
void ThreadTeam::dispatch(const Job& job) {
  SLUICE_CHECK(job.num_tasks < kMaxTasks, "{} tasks in one call", job.num_tasks);
  job_ = job;
  num_left_.store(job.num_tasks, std::memory_order_release);
  const int64_t begin_ns = steady_ns();
  begin_round();
  const int64_t own_begin_ns = steady_ns();
  const auto own = static_cast<int64_t>(run_tasks());
  const int64_t others = job.num_tasks - own;
  const int64_t own_end_ns = steady_ns();
  await_pending(static_cast<uint32_t>(others));
  const int64_t end_ns = others > 0 ? steady_ns() : own_end_ns;
  gain_.add({.own_tasks = own,
             .other_tasks = others,
             .own_ns = own_end_ns - own_begin_ns,
             .lost_ns = own_begin_ns - begin_ns + end_ns - own_end_ns},
            end_ns);
  if (failed_.load(std::memory_order_relaxed)) {
    failed_.store(false, std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
}

// Opens a round: increments its number, which helpers wait for, and wakes those that sleep.
void ThreadTeam::begin_round() {
  const uint32_t before = round_.load(std::memory_order_relaxed) & ~kHelperSleeps;
  // Clears the sleep bit: sleeping helpers are woken now, and set it again before they sleep.
  const uint32_t old = round_.exchange(before + kRoundStep, std::memory_order_release);
  if ((old & kHelperSleeps) != 0) futex_wake_all(round_);
}

// Takes tasks until none is left; returns how many this thread took.
uint32_t ThreadTeam::run_tasks() {
  uint32_t num_taken = 0;
  while (num_left_.load(std::memory_order_relaxed) > 0) {
    // Acquires the job: the count was stored with a release, and each decrement continues that.
    const int64_t left = num_left_.fetch_sub(1, std::memory_order_acquire);
    if (left <= 0) break;
    run_task(job_.num_tasks - left);
    ++num_taken;
  }
  return num_taken;
}

// Runs one task; after a failure tasks are taken and counted, but not run. The first thread that
// sets failed_ stores the exception.
void ThreadTeam::run_task(int64_t task) noexcept {
  if (failed_.load(std::memory_order_relaxed)) return;
  try {
    job_.run(job_.context, task);
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadTeam::run_helper() {
  uint32_t seen = 0;
  for (;;) {
    seen = await_round(seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    const uint32_t num_done = run_tasks();
    if (num_done == 0) continue;
    const uint32_t old = pending_.fetch_sub(num_done, std::memory_order_release);
    if (old == (kTeamWorkerSleeps | num_done))
      futex_wake_all(pending_);  // the last task of the round
  }
}

// Waits for a round after `seen` and returns its number; a descheduled helper may skip rounds.
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

// Returns when helpers have reported `num_others` tasks. Reports before this call have made
// pending_ negative; adding num_others gives the number still missing.
void ThreadTeam::await_pending(uint32_t num_others) {
  uint32_t pending = pending_.fetch_add(num_others, std::memory_order_acquire) + num_others;
  const auto finished = [&] {
    pending = pending_.load(std::memory_order_acquire);
    return (pending & ~kTeamWorkerSleeps) == 0;
  };
  if (pending == 0 || spin_until(finished)) return;
  while (!finished()) {
    const uint32_t sleeping = pending | kTeamWorkerSleeps;
    if (pending == sleeping ||
        pending_.compare_exchange_weak(pending, sleeping, std::memory_order_relaxed)) {
      futex_wait(pending_, sleeping);
    }
  }
  // Clears the sleep bit; no helper writes pending_ between rounds.
  pending_.store(0, std::memory_order_relaxed);
}

}  // namespace sluice
