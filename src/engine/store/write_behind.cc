// waiting -> moving (to host memory) -> writing -> stored or failed
#include "engine/store/write_behind.h"

#include <cstddef>
#include <utility>

#include "core/error.h"

namespace sluice {

// A block is wanted once: also after its write has failed, until its contents are gone.
void WriteBehind::add(BlockId id) {
  if (is_off_ || state(id) != State::kNone) return;
  state(id) = State::kWaiting;
  queue_.push_back(id);
  ++num_waiting_;
}

void WriteBehind::forget(BlockId id) {
  SLUICE_CHECK(state(id) != State::kMoving && state(id) != State::kWriting, "block {} is held",
               id.value);
  if (state(id) == State::kWaiting) {
    --num_waiting_;
    ++num_skipped_;
  }
  state(id) = State::kNone;
}

// Several blocks may reach the host in any order.
void WriteBehind::pump() {
  while (num_held_ < kMaxHeld && begin_next()) {
  }
  for (size_t i = 0; i < moving_.size();) {
    const BlockId id = moving_[i];
    if (!parts_.port.is_out(id)) {
      ++i;
      continue;
    }
    moving_.erase(moving_.begin() + static_cast<std::ptrdiff_t>(i));
    write(id);
  }
}

// False if none waits or there is no room.
bool WriteBehind::begin_next() {
  while (!queue_.empty() && state(queue_.front()) != State::kWaiting) queue_.pop_front();
  if (queue_.empty()) return false;
  const BlockId id = queue_.front();
  if (!parts_.port.begin_out(id)) return false;
  queue_.pop_front();
  parts_.blocks.hold(id);
  state(id) = State::kMoving;
  moving_.push_back(id);
  --num_waiting_;
  ++num_held_;
  return true;
}

// The writer's queue has room for all that are held.
void WriteBehind::write(BlockId id) {
  state(id) = State::kWriting;
  const std::span<const int32_t> tokens = parts_.blocks.tokens(id);
  StoreWrite write{.place = *parts_.names.find(id),
                   .tokens = {tokens.begin(), tokens.end()},
                   .layers = {},
                   .on_done = [this, id, &mailbox = parts_.mailbox](WriteResult result) {
                     mailbox.post([this, id, result] { written(id, result); });
                   }};
  for (const std::span<std::byte> layer : parts_.port.layers(id)) write.layers.push_back(layer);
  const bool is_taken = parts_.writer.offer(std::move(write));
  SLUICE_CHECK(is_taken, "the writer has no room for {} blocks", kMaxHeld);
}

// A block that could not be written is not tried again: the reason is the disk's, or that the limit
// is reached.
void WriteBehind::written(BlockId id, WriteResult result) {
  const bool is_stored = result == WriteResult::kWritten || result == WriteResult::kPresent;
  state(id) = is_stored ? State::kStored : State::kFailed;
  parts_.port.end_out(id);
  --num_held_;
  parts_.blocks.end_transfer(id);
  if (result != WriteResult::kOff || is_off_) return;
  is_off_ = true;
  for (State& each : states_) {
    if (each == State::kWaiting) each = State::kNone;
  }
  num_waiting_ = 0;
}

}  // namespace sluice
