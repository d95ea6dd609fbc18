// Mailbox: events of requests on their way from the engine's thread to Python.
//
// The sinks of a Service put events in; a thread of Python takes all there are. So the engine never
// waits for the GIL. What is not taken yet merges, one letter a request, so a slow program costs no
// more memory than its answers. Thread rule: any thread may call any member.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "service/request_event.h"

namespace sluice::python {

// What is new of one request: a delta, its end, or both.
struct Letter {
  std::optional<RequestOutput> output;
  std::optional<RequestEnd> end;
};

class Mailbox {
 public:
  using Letters = std::map<int64_t, Letter>;  // by the key that the submitter chose

  // Progress alone is not kept: outputs have it.
  void put(int64_t key, RequestEvent event) {
    if (std::holds_alternative<PromptProgress>(event)) return;
    const std::lock_guard lock(mutex_);
    Letter& letter = letters_[key];
    if (auto* end = std::get_if<RequestEnd>(&event)) {
      letter.end = std::move(*end);
    } else if (!letter.output) {
      letter.output = std::move(std::get<RequestOutput>(event));
    } else {
      letter.output->append(std::move(std::get<RequestOutput>(event)));
    }
    arrived_.notify_one();
  }

  // Waits until there are letters. Empty: the mailbox is closed, and has none left.
  Letters take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !letters_.empty() || is_closed_; });
    return std::exchange(letters_, {});
  }

  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    arrived_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  Letters letters_;
  bool is_closed_ = false;
};

}  // namespace sluice::python
