// JobQueue: threads that run jobs in the order in which they came.
//
// Used by store_writer and store_reader. Thread rule: all methods from any thread at once; jobs run
// on the queue's threads, without a lock, and must not throw.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {

class JobQueue {
 public:
  // Exactly one of the two functions is called.
  struct Job {
    std::function<void()> run;
    std::function<void()> drop;  // instead of run: the queue ended first
  };

  // REQUIRES: at least one thread.
  JobQueue(int num_threads, size_t max_waiting);
  // Drops the jobs that wait, on the caller's thread, and waits for those that run.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  // False, with nothing changed, while max_waiting jobs wait. Never blocks.
  bool push(Job job);
  // Waits until no job waits or runs; false if that takes longer than `limit`.
  bool wait_idle(std::chrono::nanoseconds limit);
  size_t num_waiting() const;

 private:
  void run_jobs();

  const size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable job_came_;
  std::condition_variable became_idle_;
  std::deque<Job> waiting_;
  size_t num_running_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace sluice
