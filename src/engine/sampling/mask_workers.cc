#include "engine/sampling/mask_workers.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice {
namespace {

constexpr unsigned kMaxThreads = 4;

// Half of the cores at most: the CPU device computes beside them.
size_t num_threads() {
  return std::clamp(std::thread::hardware_concurrency() / 2, 1U, kMaxThreads);
}

}  // namespace

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::add(std::vector<std::shared_ptr<MaskOrder>> orders) {
  if (orders.empty()) return;
  const size_t wanted = std::min(num_threads(), orders.size());
  {
    const std::lock_guard lock(mutex_);
    std::ranges::move(orders, std::back_inserter(queue_));
  }
  while (threads_.size() < wanted) threads_.emplace_back([this] { run(); });
  for (size_t i = 0; i < wanted; ++i) has_work_.notify_one();
}

void MaskWorkers::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return stops_ || !queue_.empty(); });
    if (stops_) return;
    const std::shared_ptr<MaskOrder> order = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    order->begin();
    if (before_) before_();
    order->make();
    lock.lock();
  }
}

}  // namespace sluice
