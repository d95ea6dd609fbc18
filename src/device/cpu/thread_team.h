// ThreadTeam: the threads that one CPU stream may use for the op it is running.
//
// Handed to every Task; used by src/ops/cpu. Each stream owns its helpers: a pool shared by two
// streams would order them and hide a missing wait from ThreadSanitizer.
// Thread rule: `run` and `parallel_for` are called by the stream's worker only, never nested.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {

class ThreadTeam {
 public:
  // Starts `num_threads - 1` helpers; the caller of `run` is the remaining thread.
  ThreadTeam(int num_threads, const std::string& name);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls `fn(thread_index, num_threads)` once on every thread and returns when all are done.
  // Cost: a few microseconds while the helpers are awake (they spin briefly after each call).
  // Errors: rethrows the first exception of `fn`, after all threads have finished.
  template <typename F>
  void run(F&& fn) {
    using Fn = std::remove_reference_t<F>;
    if (num_threads_ == 1) {
      fn(0, 1);
      return;
    }
    dispatch([](void* context, int thread_index,
                int num_threads) { (*static_cast<Fn*>(context))(thread_index, num_threads); },
             const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Calls `fn(task)` for every task in [0, num_tasks), each once, on whichever thread is free.
  // Which thread runs a task may differ from run to run: a result must not depend on it.
  // Cost: as `run`, plus one atomic increment per task; a single task runs inline.
  // Errors: as `run`; tasks not yet begun when one throws may be left out.
  template <typename F>
  void parallel_for(int64_t num_tasks, F&& fn) {
    if (num_threads_ == 1 || num_tasks <= 1) {
      for (int64_t task = 0; task < num_tasks; ++task) fn(task);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int, int) {
      for (;;) {
        const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= num_tasks) return;
        fn(task);
      }
    });
  }

 private:
  using Job = void (*)(void* context, int thread_index, int num_threads);

  void stop();
  void dispatch(Job job, void* context);
  void run_helper(int thread_index);
  void run_share(int thread_index) noexcept;
  uint32_t await_round(uint32_t seen);
  void await_helpers();
  void begin_round();

  const int num_threads_;

  // Written by the worker between rounds, read by the helpers in a round.
  Job job_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  std::exception_ptr error_;  // written by whoever set failed_

  // Round number in the upper bits; bit 0 says that a helper sleeps (or is about to).
  alignas(64) std::atomic<uint32_t> round_{0};
  // Helpers still busy with this round; the top bit says that the worker sleeps.
  alignas(64) std::atomic<uint32_t> num_busy_{0};
  std::atomic<bool> failed_{false};

  std::vector<std::thread> helpers_;
};

}  // namespace sluice
