// CallGate: host calls that stand still at a known place until a test lets them go.
//
// Used by tests of threads: in a hook of a file, an event sink. Code of the program never waits
// there; a test does, so that everything after that call is held. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <mutex>

namespace sluice::testing {

// Closed until `open`, then open for good.
class CallGate {
 public:
  // Waits until the gate is open.
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_reached_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  // Waits until `pass` has been called this many times.
  void wait_for(int num_calls) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_reached_ >= num_calls; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_reached_ = 0;
  bool is_open_ = false;
};

}  // namespace sluice::testing
