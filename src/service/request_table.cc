// Admission, ends and waiting. No sink is called here.
#include "service/request_table.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace sluice {
namespace {

// Longer limits would overflow the clock.
constexpr std::chrono::hours kLongestDrain{24 * 365};

template <size_t kSize, typename Name>
int64_t& count_of(std::array<int64_t, kSize>& counts, Name name) {
  return counts[static_cast<size_t>(name)];
}

}  // namespace

std::string_view refusal_name(Refusal refusal) {
  constexpr std::array<std::string_view, kNumRefusals> kNames = {
      "too many waiting requests", "too many waiting prompt tokens", "draining", "dead"};
  return kNames[static_cast<size_t>(refusal)];
}

std::string_view end_reason_name(EndReason reason) {
  constexpr std::array<std::string_view, kNumEndReasons> kNames = {"stop", "length", "cancelled",
                                                                   "abort", "error"};
  return kNames[static_cast<size_t>(reason)];
}

RequestTable::RequestTable(const Limits& limits, const EngineState& initial) : limits_(limits) {
  const auto check = [](const char* name, int64_t value) {
    if (value >= 1) return;
    fail(ErrorCode::kInvalidArgument, "{} is {}; give at least 1", name, value);
  };
  check("max_waiting", limits.max_waiting);
  check("max_waiting_tokens", limits.max_waiting_tokens);
  now_.stats = initial.stats;
  now_.kv = initial.kv;
}

// A single request may be larger than max_waiting_tokens; it could otherwise never run.
std::optional<Refusal> RequestTable::refusal(int64_t num_prompt_tokens) const {
  if (now_.state == ServiceState::kDead) return Refusal::kDead;
  if (now_.state == ServiceState::kDraining) return Refusal::kDraining;
  if (now_.num_waiting >= limits_.max_waiting) return Refusal::kTooManyWaiting;
  const int64_t num_tokens = now_.num_waiting_prompt_tokens + num_prompt_tokens;
  if (now_.num_waiting > 0 && num_tokens > limits_.max_waiting_tokens) {
    return Refusal::kTooManyWaitingTokens;
  }
  return std::nullopt;
}

Submitted RequestTable::admit(ServiceRequest request, RequestSink sink) {
  // Made before the lock is taken, and destroyed after: a prompt may be long.
  auto open = std::make_shared<OpenRequest>();
  open->num_prompt_tokens = std::ssize(request.prompt);
  open->request = std::move(request);
  open->sink = std::move(sink);
  const std::lock_guard lock(mutex_);
  if (const std::optional<Refusal> refused = refusal(open->num_prompt_tokens)) {
    ++count_of(now_.num_refused, *refused);
    return {.refusal = refused};
  }
  open->id = ++last_id_;
  open_.emplace(open->id, open);
  inbox_.push_back(open);
  ++now_.num_accepted;
  ++now_.num_waiting;
  now_.num_waiting_prompt_tokens += open->num_prompt_tokens;
  work_arrived_.notify_one();
  return {.request_id = last_id_};
}

// An open request is in the inbox, which wakes the thread, or in the engine, which then steps; both
// see the flag without being woken.
bool RequestTable::cancel(int64_t request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(request_id);
  if (found == open_.end()) return false;
  found->second->is_cancelled.store(true, std::memory_order_relaxed);
  return true;
}

ServiceSnapshot RequestTable::snapshot() const {
  const std::lock_guard lock(mutex_);
  ServiceSnapshot snapshot = now_;
  const int64_t since = busy_since_ns_.load(std::memory_order_relaxed);
  if (since != 0) snapshot.stalled_ns = std::max<int64_t>(steady_ns() - since, 0);
  return snapshot;
}

int64_t RequestTable::drain(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  if (now_.state == ServiceState::kServing) now_.state = ServiceState::kDraining;
  const auto is_drained = [this] { return is_idle_ && inbox_.empty(); };
  const auto until =
      std::chrono::steady_clock::now() + std::min<std::chrono::nanoseconds>(limit, kLongestDrain);
  if (fell_idle_.wait_until(lock, until, is_drained)) return 0;
  int64_t num_aborted = 0;
  for (const auto& [id, open] : open_) {
    if (open->is_cancelled.exchange(true, std::memory_order_relaxed)) continue;
    open->is_aborted = true;
    ++num_aborted;
  }
  fell_idle_.wait(lock, is_drained);
  return num_aborted;
}

std::optional<std::vector<OpenRequestPtr>> RequestTable::take(Work work) {
  const bool has_requests = work == Work::kRequests;
  std::unique_lock lock(mutex_);
  const auto has_orders = [this] { return !inbox_.empty() || !unpins_.empty(); };
  while (!has_requests && !has_orders() && !is_stopping_ && !is_woken_) {
    busy_since_ns_.store(0, std::memory_order_relaxed);
    is_idle_ = true;
    fell_idle_.notify_all();
    if (work == Work::kNothing) {
      work_arrived_.wait(lock);
    } else if (work_arrived_.wait_for(lock, kNap) == std::cv_status::timeout) {
      return std::vector<OpenRequestPtr>();
    }
  }
  const bool is_woken = std::exchange(is_woken_, false);
  if (!has_requests && !has_orders() && !is_woken) return std::nullopt;
  is_idle_ = false;
  touch();
  return std::exchange(inbox_, {});
}

void RequestTable::touch() { busy_since_ns_.store(steady_ns(), std::memory_order_relaxed); }

void RequestTable::publish(const EngineState& state, std::span<Ending> endings) {
  const std::lock_guard lock(mutex_);
  for (Ending& ending : endings) end(ending);
  now_.stats = state.stats;
  now_.steps = state.steps;
  now_.kv = state.kv;
  now_.num_running = state.queues.num_running;
  now_.num_waiting = state.queues.num_waiting + std::ssize(inbox_);
  now_.num_waiting_prompt_tokens = state.queues.num_waiting_prompt_tokens;
  for (const OpenRequestPtr& open : inbox_) {
    now_.num_waiting_prompt_tokens += open->num_prompt_tokens;
  }
}

std::vector<PinInfo> RequestTable::pins() const {
  const std::lock_guard lock(mutex_);
  return pins_;
}

bool RequestTable::unpin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const PinInfo& pin) { return pin.name == name; };
  if (std::erase_if(pins_, is_it) == 0) return false;
  unpins_.push_back(name);
  work_arrived_.notify_one();
  return true;
}

std::vector<std::string> RequestTable::take_unpins() {
  const std::lock_guard lock(mutex_);
  return std::exchange(unpins_, {});
}

// What a caller has deleted meanwhile does not come back.
void RequestTable::set_pins(std::vector<PinInfo> pins) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pins, [this](const PinInfo& pin) {
    return std::ranges::find(unpins_, pin.name) != unpins_.end();
  });
  pins_ = std::move(pins);
}

void RequestTable::set_warnings(std::vector<std::string> warnings) {
  const std::lock_guard lock(mutex_);
  now_.warnings = std::move(warnings);
}

// REQUIRES: the mutex is held.
void RequestTable::end(Ending& ending) {
  ending.end.request_id = ending.request->id;
  if (ending.end.reason == EndReason::kCancelled && ending.request->is_aborted) {
    ending.end.reason = EndReason::kAborted;
  }
  ++count_of(now_.num_ended, ending.end.reason);
  open_.erase(ending.request->id);
}

std::vector<Ending> RequestTable::end_all(const Error& error) {
  const std::lock_guard lock(mutex_);
  busy_since_ns_.store(0, std::memory_order_relaxed);
  std::vector<Ending> endings;
  for (const auto& [id, open] : open_) {
    endings.push_back({.request = open, .end = {.reason = EndReason::kError, .error = error}});
  }
  for (Ending& ending : endings) end(ending);
  inbox_.clear();
  now_.state = ServiceState::kDead;
  now_.error = error;
  now_.num_running = 0;
  now_.num_waiting = 0;
  now_.num_waiting_prompt_tokens = 0;
  return endings;
}

void RequestTable::wake() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  work_arrived_.notify_one();
}

void RequestTable::stop() {
  const std::lock_guard lock(mutex_);
  is_stopping_ = true;
  work_arrived_.notify_one();
}

}  // namespace sluice
