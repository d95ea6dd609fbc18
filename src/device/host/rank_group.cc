// Words of shared memory, and waits for them.
#include "device/host/rank_group.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/clock.h"
#include "core/error.h"
#include "device/host/waiting.h"

namespace sluice {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kTextBytes = 960;
// Between looks at the clock and at failures while a thread sleeps.
constexpr int64_t kNapNs = 20'000'000;

size_t whole_lines(size_t num_bytes) { return (num_bytes + kLine - 1) / kLine * kLine; }

}  // namespace

// The states: none has failed, a rank writes its text, the text is there.
struct RankGroup::Memory {
  enum State : uint32_t { kGood = 0, kFailing = 1, kFailed = 2 };
  alignas(kLine) std::atomic<uint32_t> state;
  int32_t rank;
  char text[kTextBytes];
};

struct RankGroup::RankWord {
  alignas(kLine) std::atomic<uint32_t> number;
};

size_t RankGroup::memory_bytes(const Options& options) {
  const auto num_ranks = static_cast<size_t>(options.num_ranks);
  return sizeof(Memory) + num_ranks * (sizeof(RankWord) + 2 * whole_lines(options.slot_bytes));
}

// Zero bytes are a good state of all atomics here, which are free of locks.
RankGroup::RankGroup(std::span<std::byte> memory, const Options& options)
    : options_(options),
      memory_(reinterpret_cast<Memory*>(memory.data())),
      words_(reinterpret_cast<RankWord*>(memory.data() + sizeof(Memory))),
      slots_(memory.data() + sizeof(Memory) +
             static_cast<size_t>(options.num_ranks) * sizeof(RankWord)) {
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  SLUICE_CHECK(memory.size() >= memory_bytes(options), "{} bytes", memory.size());
}

std::span<std::byte> RankGroup::slot(int32_t rank, uint32_t number) const {
  const auto index = static_cast<size_t>(rank) * 2 + number % 2;
  return {slots_ + index * whole_lines(options_.slot_bytes), options_.slot_bytes};
}

void RankGroup::publish(int32_t rank, uint32_t number) {
  std::atomic<uint32_t>& word = words_[rank].number;
  word.store(number, std::memory_order_release);
  futex_wake_shared(word);
}

void RankGroup::await_all(int32_t rank, uint32_t number) {
  for (int32_t other = 0; other < options_.num_ranks; ++other) {
    if (other != rank) await(rank, other, number);
  }
}

// Numbers wrap around; ranks are never further apart than a slot's turn.
void RankGroup::await(int32_t rank, int32_t other, uint32_t number) {
  std::atomic<uint32_t>& word = words_[other].number;
  const auto has_come = [&] {
    return static_cast<int32_t>(word.load(std::memory_order_acquire) - number) >= 0;
  };
  if (spin_until(has_come)) return;
  const int64_t deadline_ns = steady_ns() + options_.time_limit_ns;
  while (!has_come()) {
    check();
    if (steady_ns() >= deadline_ns) {
      fail(other, fmt::format("did not come within {} s, for which rank {} waited",
                              options_.time_limit_ns / 1'000'000'000, rank));
      continue;
    }
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (static_cast<int32_t>(seen - number) < 0) futex_wait_shared(word, seen, kNapNs);
  }
}

void RankGroup::fail(int32_t rank, const std::string& what) {
  uint32_t good = Memory::kGood;
  if (!memory_->state.compare_exchange_strong(good, Memory::kFailing)) return;
  memory_->rank = rank;
  const size_t length = std::min(what.size(), kTextBytes - 1);
  std::memcpy(memory_->text, what.data(), length);
  memory_->text[length] = '\0';
  memory_->state.store(Memory::kFailed, std::memory_order_release);
  for (int32_t i = 0; i < options_.num_ranks; ++i) futex_wake_shared(words_[i].number);
  const std::lock_guard lock(mutex_);
  for (std::atomic<uint32_t>* word : watched_) word->store(1, std::memory_order_release);
}

void RankGroup::watch(std::atomic<uint32_t>& word) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(&word);
  if (has_failed()) word.store(1, std::memory_order_release);
}

void RankGroup::unwatch(std::atomic<uint32_t>& word) {
  const std::lock_guard lock(mutex_);
  std::erase(watched_, &word);
}

bool RankGroup::has_failed() const {
  return memory_->state.load(std::memory_order_acquire) == Memory::kFailed;
}

void RankGroup::check() const {
  if (!has_failed()) return;
  sluice::fail(ErrorCode::kDevice, "rank {} of {}: {}; all ranks have stopped, start them again",
               memory_->rank, options_.num_ranks, memory_->text);
}

}  // namespace sluice
