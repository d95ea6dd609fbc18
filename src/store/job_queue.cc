// One mutex over a deque.
#include "store/job_queue.h"

#include <utility>

#include "core/error.h"

namespace sluice {

JobQueue::JobQueue(int num_threads, size_t max_waiting) : max_waiting_(max_waiting) {
  SLUICE_CHECK(num_threads > 0, "a queue with {} threads", num_threads);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run_jobs(); });
}

// Jobs that wait are dropped before the threads are joined: a caller may wait for one of them.
JobQueue::~JobQueue() {
  std::deque<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    dropped.swap(waiting_);
  }
  job_came_.notify_all();
  for (Job& job : dropped) job.drop();
  for (std::thread& thread : threads_) thread.join();
}

bool JobQueue::push(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= max_waiting_) return false;
    waiting_.push_back(std::move(job));
  }
  job_came_.notify_one();
  return true;
}

bool JobQueue::wait_idle(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  return became_idle_.wait_for(lock, limit,
                               [this] { return waiting_.empty() && num_running_ == 0; });
}

size_t JobQueue::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

// What a job holds may end a block's reservation, which others wait for.
void JobQueue::run_jobs() {
  std::unique_lock lock(mutex_);
  for (;;) {
    job_came_.wait(lock, [this] { return is_over_ || !waiting_.empty(); });
    if (is_over_) return;
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    ++num_running_;
    lock.unlock();
    job.run();
    job = {};  // what it holds is destroyed without the lock, and before it counts as done
    lock.lock();
    if (--num_running_ == 0 && waiting_.empty()) became_idle_.notify_all();
  }
}

}  // namespace sluice
