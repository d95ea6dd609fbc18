// ThreadTeam: the threads of one CPU stream for the op that it runs.
//
// Passed to every Task; used by src/ops/cpu. Each stream has its own helpers: a pool shared by two
// streams would order them and hide a missing wait from ThreadSanitizer.
// Thread rule: `parallel_for` is called by the stream's worker only, never nested.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "device/host/team_gain.h"

namespace sluice {

class ThreadTeam {
 public:
  // Starts `num_threads - 1` helpers; the caller of `parallel_for` is the remaining thread.
  ThreadTeam(int num_threads, const std::string& name);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls `fn(task)` for every task in [0, num_tasks), each once, and returns when all are done.
  // Results must not depend on which thread runs a task. The call waits only for tasks that a
  // helper has begun, so a helper whose core is used by another program delays nothing unless it
  // has a task. If helpers cost more time than they save, the worker runs all tasks alone for a
  // while (see TeamGain).
  // Cost: a few microseconds while the helpers are awake (they spin briefly after each call), plus
  // one atomic decrement per task; a single task runs inline.
  // Errors: rethrows the first exception of `fn`, after all begun tasks have ended; tasks not begun
  // by then are skipped.
  template <typename F>
  void parallel_for(int64_t num_tasks, F&& fn) {
    if (num_threads_ == 1 || num_tasks <= 1 || gain_.alone()) {
      for (int64_t task = 0; task < num_tasks; ++task) fn(task);
      return;
    }
    using Fn = std::remove_reference_t<F>;
    dispatch({.run = [](void* context, int64_t task) { (*static_cast<Fn*>(context))(task); },
              .context = const_cast<void*>(static_cast<const void*>(&fn)),
              .num_tasks = num_tasks});
  }

 private:
  struct Job {
    void (*run)(void* context, int64_t task) = nullptr;
    void* context = nullptr;
    int64_t num_tasks = 0;
  };

  void stop();
  void dispatch(const Job& job);
  void run_helper();
  uint32_t run_tasks();
  void run_task(int64_t task) noexcept;
  uint32_t await_round(uint32_t seen);
  void await_pending(uint32_t num_others);
  void begin_round();

  const int num_threads_;

  // Written by the worker between rounds; a helper reads it only while it holds a task of the
  // round.
  Job job_;
  std::exception_ptr error_;  // written by the thread that set failed_
  TeamGain gain_;             // the worker's

  // Round number in the upper bits; bit 0 is set if a helper sleeps or is about to.
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<bool> stopping_{false};
  // Tasks of this round that no thread has taken; negative after late helpers tried to take one.
  alignas(64) std::atomic<int64_t> num_left_{0};
  // While the worker waits: tasks that helpers have not reported yet; the top bit is set while it
  // sleeps. Before it waits: minus the number of tasks reported.
  alignas(64) std::atomic<uint32_t> pending_{0};
  std::atomic<bool> failed_{false};

  std::vector<std::thread> helpers_;
};

}  // namespace sluice
