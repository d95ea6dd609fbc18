// Mailbox: what other threads have to tell the engine's thread, in the order of their calls.
//
// Used by engine/store: the threads of the store post what they have done. Thread rule: `post` from
// any thread; the others on the engine's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice {

class Mailbox {
 public:
  using Letter = std::function<void()>;

  void post(Letter letter) {
    {
      const std::lock_guard lock(mutex_);
      letters_.push_back(std::move(letter));
    }
    came_.notify_one();
  }

  // Calls what was posted. False if there was nothing.
  bool take() {
    std::vector<Letter> letters;
    {
      const std::lock_guard lock(mutex_);
      letters.swap(letters_);
    }
    for (const Letter& letter : letters) letter();
    return !letters.empty();
  }

  // Waits until there is something to take; false if that takes longer than `limit`.
  bool wait(std::chrono::nanoseconds limit) {
    std::unique_lock lock(mutex_);
    return came_.wait_for(lock, limit, [this] { return !letters_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Letter> letters_;
};

}  // namespace sluice
