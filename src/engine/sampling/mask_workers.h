// MaskWorkers: threads that make the masks of a pass beside the device.
//
// Owned by Grammars. The threads begin with the first order, so that an engine without structured
// output has none. Thread rule: the engine's thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "engine/sampling/mask_order.h"

namespace sluice {

class MaskWorkers {
 public:
  // `before`: called before each order is made; null: nothing.
  explicit MaskWorkers(std::function<void()> before = nullptr) : before_(std::move(before)) {}
  // Waits for the masks that are being made; others are dropped.
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Orders are made in their order, several at a time.
  void add(std::vector<std::shared_ptr<MaskOrder>> orders);

 private:
  void run();

  const std::function<void()> before_;
  std::mutex mutex_;
  std::condition_variable has_work_;
  std::deque<std::shared_ptr<MaskOrder>> queue_;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice
