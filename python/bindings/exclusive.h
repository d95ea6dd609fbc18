// Exclusive: an object that one thread at a time uses, shared by Python threads.
//
// Holds the LLM of an Engine: "one thread calls an LLM object" (sluice/llm.h). Thread rule: `use`
// may be called by any thread that holds the GIL, the destructor by the last.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <nanobind/nanobind.h>

#include "gil.h"

namespace sluice::python {

template <typename T>
class Exclusive {
 public:
  // `make()` runs without the GIL and returns a unique_ptr.
  template <typename Make>
  explicit Exclusive(const Make& make) {
    const nb::gil_scoped_release release;
    object_ = make();
  }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

  // Memory of gigabytes takes long to release.
  ~Exclusive() {
    const nb::gil_scoped_release release;
    object_.reset();
  }

  // Returns call(object), run without the GIL and alone. Other threads wait, and Ctrl-C ends the
  // wait. Errors: those of the call; RuntimeError where the call comes from a callback or a signal
  // handler of another one, which would wait for itself.
  template <typename Call>
  auto use(const Call& call) {
    if (user_ == std::this_thread::get_id()) {
      throw std::runtime_error("this engine is in the middle of another call of the same thread");
    }
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) wait_for(lock);
    const nb::gil_scoped_release release;
    const UserScope scope(user_);
    return call(*object_);
  }

  // For members that any thread may call at any time.
  const T& shared() const { return *object_; }

 private:
  struct UserScope {
    explicit UserScope(std::atomic<std::thread::id>& user) : user_(user) {
      user_ = std::this_thread::get_id();
    }
    ~UserScope() { user_ = std::thread::id(); }
    UserScope(const UserScope&) = delete;
    UserScope& operator=(const UserScope&) = delete;

    std::atomic<std::thread::id>& user_;
  };

  static void wait_for(std::unique_lock<std::timed_mutex>& lock) {
    Watch watch;
    const nb::gil_scoped_release release;
    while (!lock.try_lock_for(std::chrono::milliseconds(100))) watch.look();
  }

  std::timed_mutex mutex_;
  std::atomic<std::thread::id> user_{};  // who holds the mutex
  std::unique_ptr<T> object_;
};

}  // namespace sluice::python
