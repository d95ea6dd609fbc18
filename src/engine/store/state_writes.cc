// waiting for its block -> writing -> done
#include "engine/store/state_writes.h"

#include <utility>

#include "core/error.h"

namespace sluice {

// In order: what comes first belongs to the earlier block, which is stored first.
void StateWrites::pump() {
  while (num_held_ < kMaxHeld && !queue_.empty()) {
    const Wanted wanted = queue_.front();
    if (parts_.writes.is_on_its_way(wanted.block) && is_there(wanted)) return;
    queue_.pop_front();
    if (parts_.writes.is_stored(wanted.block) && is_there(wanted)) write(wanted);
  }
}

// A block may have got other tokens, and a prefix another block.
bool StateWrites::is_there(const Wanted& wanted) const {
  return parts_.blocks.is_findable(wanted.block) &&
         parts_.blocks.prefix_id(wanted.block) == wanted.prefix &&
         parts_.snapshots.contains(wanted.prefix) && parts_.names.find(wanted.block);
}

// The writer's queue has room for all that are held.
void StateWrites::write(const Wanted& wanted) {
  const SnapshotId place = parts_.snapshots.hold(wanted.prefix);
  parts_.blocks.hold(wanted.block);
  ++num_held_;
  const std::span<const int32_t> tokens = parts_.blocks.tokens(wanted.block);
  StoreWrite write{.place = *parts_.names.find(wanted.block),
                   .tokens = {tokens.begin(), tokens.end()},
                   .layers = {},
                   .on_done = [this, wanted, &mailbox = parts_.mailbox](WriteResult) {
                     mailbox.post([this, wanted] { written(wanted); });
                   }};
  write.place.kind = StoredKind::kState;
  for (const auto& layer : parts_.states.layers(place)) write.layers.push_back(layer);
  const bool is_taken = parts_.writer.offer(std::move(write));
  SLUICE_CHECK(is_taken, "the writer has no room for {} states", kMaxHeld);
}

// The hold of the snapshot first: it goes with its block.
void StateWrites::written(const Wanted& wanted) {
  parts_.snapshots.unhold(wanted.prefix);
  parts_.blocks.end_transfer(wanted.block);
  --num_held_;
}

}  // namespace sluice
