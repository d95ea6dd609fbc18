// Blocks are held from the first on: a beginning is of use without its rest, but not the reverse.
#include "engine/kv/pins.h"

#include <algorithm>

#include "core/error.h"
#include "engine/kv/kv_backing.h"
#include "engine/kv/state_snapshots.h"

namespace sluice {

void Pins::check_room(const std::string& name, int64_t num_prompt_tokens) const {
  if (!is_pin_name(name)) {
    fail(
        ErrorCode::kInvalidArgument,
        "the name of a pin is '{}'; it must be 1 to {} of A-Z, a-z, 0-9, '.', '_' and '-', and not "
        "begin with '.'",
        name.substr(0, kMaxPinName), kMaxPinName);
  }
  if (parts_.snapshots != nullptr) check_snapshots(name);
  const int64_t num_blocks = num_prompt_tokens / parts_.blocks.block_tokens();
  const int64_t num_left = parts_.max_blocks - num_held_;
  if (parts_.store.writes() || num_blocks <= num_left) return;
  fail(ErrorCode::kDoesNotFit,
       "pin '{}' needs {} KV blocks, and {} of {} are left for pins beside one longest request; "
       "delete a pin, lower max_model_len, give KV more memory, or use a kv_store",
       name, num_blocks, num_left, parts_.max_blocks);
}

// Half of the places are for requests.
int32_t Pins::most_states() const { return (parts_.snapshots->table().num_places() + 1) / 2; }

void Pins::check_snapshots(const std::string& name) const {
  const int32_t most = most_states();
  if (parts_.store.writes() || num_held_states_ < most) return;
  fail(
      ErrorCode::kDoesNotFit,
      "pin '{}' needs a snapshot of states, and pins hold {} of {} that they may; delete a pin, or "
      "raise state_cache_bytes",
      name, num_held_states_.load(), most);
}

void Pins::keep(const std::string& name, const SequenceKv& kv, int64_t num_tokens) {
  release(name);
  Pin& pin = pins_[name];
  const int64_t num_whole =
      std::min<int64_t>(num_tokens / parts_.blocks.block_tokens(), kv.num_sealed_blocks());
  for (int64_t i = 0; i < num_whole; ++i) {
    const BlockId id = kv.blocks()[static_cast<size_t>(i)].id;
    if (!parts_.blocks.is_findable(id)) break;
    ++pin.num_blocks;
    const auto key = parts_.store.writes() ? parts_.store.key_of(id) : std::nullopt;
    if (key) pin.keys.push_back(*key);
    if (num_held_ >= parts_.max_blocks) continue;
    parts_.blocks.hold(id);
    pin.held.push_back(id);
    ++num_held_;
  }
  if (parts_.snapshots != nullptr) hold_state(pin);
  if (!parts_.store.writes()) pin.num_blocks = std::ssize(pin.held);
  ++num_changes_;
  tell_store();
}

// No request goes on from blocks after the snapshot.
void Pins::hold_state(Pin& pin) {
  const bool has_room = num_held_states_ < most_states();
  const StateSnapshots::Held state =
      has_room ? parts_.snapshots->hold_deepest(pin.held) : StateSnapshots::Held();
  while (pin.held.size() > state.num_blocks) unhold_last(pin);
  pin.state_prefix = state.prefix;
  if (state.num_blocks > 0) ++num_held_states_;
}

void Pins::unhold_last(Pin& pin) {
  parts_.blocks.unhold(pin.held.back());
  pin.held.pop_back();
  --num_held_;
}

// All keys: two pins may have blocks in common.
void Pins::tell_store() const {
  if (!parts_.store.writes()) return;
  std::set<StoreKey> keys;
  for (const auto& [name, pin] : pins_) keys.insert(pin.keys.begin(), pin.keys.end());
  parts_.store.set_pinned(std::move(keys));
}

// Last to first, so that a prefix outlives its extensions in the cache.
bool Pins::release(const std::string& name) {
  const auto found = pins_.find(name);
  if (found == pins_.end()) return false;
  Pin& pin = found->second;
  if (pin.state_prefix != 0) {
    parts_.snapshots->unhold(pin.state_prefix);
    --num_held_states_;
  }
  while (!pin.held.empty()) unhold_last(pin);
  pins_.erase(found);
  ++num_changes_;
  tell_store();
  return true;
}

std::vector<PinInfo> Pins::list() const {
  const int64_t block_tokens = parts_.blocks.block_tokens();
  std::vector<PinInfo> list;
  for (const auto& [name, pin] : pins_) {
    PinInfo& info = list.emplace_back();
    info.name = name;
    info.num_blocks = pin.num_blocks;
    info.num_tokens = pin.num_blocks * block_tokens;
    info.num_bytes = pin.num_blocks * parts_.block_bytes;
    if (pin.state_prefix != 0) info.num_bytes += parts_.snapshot_bytes;
    const int64_t num_held = std::ssize(pin.held);
    (parts_.on_host ? info.num_host_tokens : info.num_device_tokens) = num_held * block_tokens;
    if (!parts_.store.writes()) continue;
    const int64_t num_stored =
        std::ranges::count_if(pin.held, [this](BlockId id) { return parts_.store.is_stored(id); });
    info.num_disk_tokens = (num_stored + pin.num_blocks - num_held) * block_tokens;
  }
  return list;
}

std::vector<Pins::Held> Pins::held() const {
  std::vector<Held> held;
  for (const auto& [name, pin] : pins_) {
    held.push_back({name, pin.held, pin.num_blocks - std::ssize(pin.held)});
  }
  return held;
}

}  // namespace sluice
