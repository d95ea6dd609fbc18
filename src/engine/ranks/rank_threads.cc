// Threads that run passes they are sent.
#include "engine/ranks/rank_threads.h"

#include <utility>

#include "core/error.h"
#include "device/host/waiting.h"
#include "engine/step_recorder.h"

namespace sluice {
namespace {

constexpr size_t kLine = 64;

// A follower of GPUs spins for the next message this long: more than what is between two steps, of
// which waking its thread would add 5 to 50 us to each. On a CPU the devices' threads need the
// cores.
constexpr int64_t kGpuSpinNs = 2'000'000;

// The first whole line of `memory`, which has one more than it needs.
std::span<std::byte> aligned(std::vector<std::byte>& memory) {
  void* begin = memory.data();
  size_t room = memory.size();
  std::align(kLine, room - kLine, begin, room);
  return {static_cast<std::byte*>(begin), room};
}

}  // namespace

RankThreads::RankThreads(const Front& front, const EngineOptions& options, MakeDevice make_device)
    : front_(front), options_(options), make_device_(std::move(make_device)) {
  const RankGroup::Options group{.num_ranks = front.plan().num_ranks};
  memory_.resize(RankGroup::memory_bytes(group) + kLine);
  group_.emplace(aligned(memory_), group);
  part_limit_.emplace(*group_);
  for (int32_t rank = 1; rank < group.num_ranks; ++rank) {
    followers_.push_back(std::make_unique<Follower>());
    Follower& follower = *followers_.back();
    follower.rank = rank;
    follower.thread = std::thread([this, &follower] { run(follower); });
  }
}

RankThreads::~RankThreads() {
  stop();
  for (const auto& follower : followers_) {
    const std::lock_guard lock(follower->mutex);
    follower->may_end = true;
    follower->changed.notify_all();
  }
  for (const auto& follower : followers_) follower->thread.join();
}

// A rank that waits for the first one in a sum waits for ever if that one has failed: no pass ends
// after this, so the group does.
void RankThreads::stop() {
  group_->fail(0, "the engine has ended");
  for (const auto& follower : followers_) {
    const std::lock_guard lock(follower->mutex);
    follower->is_closed = true;
    follower->changed.notify_all();
  }
  for (const auto& follower : followers_) {
    std::unique_lock lock(follower->mutex);
    follower->changed.wait(lock, [&] { return follower->has_stopped; });
  }
}

RankSeat RankThreads::seat(int32_t rank) {
  return {.shard = {.rank = rank, .num_ranks = group_->options().num_ranks},
          .group = &*group_,
          .part_limit = &*part_limit_};
}

void RankThreads::await_ready() {
  for (const auto& follower : followers_) {
    std::unique_lock lock(follower->mutex);
    follower->changed.wait(lock, [&] { return follower->is_ready || follower->error; });
    if (follower->error) std::rethrow_exception(follower->error);
  }
}

// One copy for all: a message of a step is some hundred bytes, of a pass of 8,192 rows 32 KB.
void RankThreads::send(const StepMessage& message) {
  group_->check();
  const auto copy = std::make_shared<const StepMessage>(message);
  for (const auto& follower : followers_) {
    const std::lock_guard lock(follower->mutex);
    follower->inbox.push_back(copy);
    follower->has_news.store(true, std::memory_order_release);
    follower->changed.notify_all();
  }
}

// The mutex keeps the rank from the next message, and orders its memory between the threads.
void RankThreads::visit(const std::function<void(int32_t rank, Rank& place)>& use) {
  for (const auto& follower : followers_) {
    std::unique_lock lock(follower->mutex);
    follower->changed.wait(lock, [&] {
      return (follower->is_idle && follower->inbox.empty()) || follower->has_stopped;
    });
    group_->check();
    try {
      use(follower->rank, *follower->place);
    } catch (const std::exception& error) {
      group_->fail(follower->rank, error.what());
      throw;
    }
  }
}

// ---- A follower's thread -----------------------------------------------------------------------

void RankThreads::run(Follower& follower) {
  try {
    follow(follower);
  } catch (const std::exception& error) {
    group_->fail(follower.rank, error.what());
    const std::lock_guard lock(follower.mutex);
    follower.error = std::current_exception();
    follower.has_stopped = true;
    follower.changed.notify_all();
  }
}

// Everything of a rank lives on its thread: made, used and freed there.
void RankThreads::follow(Follower& follower) {
  Rank rank(make_device_(follower.rank), make_policies(options_), front_, options_, nullptr,
            seat(follower.rank));
  rank.load_weights(options_.seed, /*wants_hash=*/false, nullptr);
  {
    const std::lock_guard lock(follower.mutex);
    if (rank.device().kind() == DeviceKind::kCuda) follower.spin_ns = kGpuSpinNs;
    follower.place = &rank;
    follower.is_ready = true;
    follower.changed.notify_all();
  }
  try {
    run_messages(follower, rank);
  } catch (const std::exception& error) {
    // Before the wait below: what is enqueued may wait for ranks that wait for this one.
    group_->fail(follower.rank, error.what());
  }
  try {
    rank.synchronize();
  } catch (const std::exception& error) {
    group_->fail(follower.rank, error.what());
  }
  hold(follower);
}

// Keeps the rank's memory until no rank has work.
void RankThreads::hold(Follower& follower) {
  std::unique_lock lock(follower.mutex);
  follower.has_stopped = true;
  follower.changed.notify_all();
  follower.changed.wait(lock, [&] { return follower.may_end; });
}

void RankThreads::run_messages(Follower& follower, Rank& rank) {
  KvMirror mirror(front_.plan().kv_layout.block.block_tokens);
  while (const auto message = take(follower)) {
    mirror.apply(*message, rank.follower());
    // One without spans brings events of blocks alone.
    if (!message->spans.empty()) rank.follow({.message = *message, .tables = mirror});
  }
}

// Null: there is no further one. A rank is idle from here on, for `visit`, until it has the next.
std::shared_ptr<const StepMessage> RankThreads::take(Follower& follower) {
  {
    const std::lock_guard lock(follower.mutex);
    follower.is_idle = true;
    follower.changed.notify_all();  // visit
  }
  spin_until([&] { return follower.has_news.load(std::memory_order_acquire); }, follower.spin_ns);
  std::unique_lock lock(follower.mutex);
  follower.changed.wait(lock, [&] { return !follower.inbox.empty() || follower.is_closed; });
  if (follower.inbox.empty()) return nullptr;
  follower.is_idle = false;
  auto message = std::move(follower.inbox.front());
  follower.inbox.pop_front();
  follower.has_news.store(!follower.inbox.empty(), std::memory_order_relaxed);
  return message;
}

}  // namespace sluice
