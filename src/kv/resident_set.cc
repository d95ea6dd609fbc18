// Gives places to blocks and takes them back in order of admission.
#include "kv/resident_set.h"

#include <algorithm>

namespace sluice {

ResidentSet::ResidentSet(int32_t num_places, int32_t num_host_blocks) : num_places_(num_places) {
  if (num_places == 0) return;
  entries_.resize(static_cast<size_t>(num_host_blocks));
  for (int32_t i = num_places - 1; i >= 0; --i) free_places_.emplace_back(i);
}

PlaceId ResidentSet::find(BlockId id) const {
  return num_places_ > 0 && entry(id).is_complete ? entry(id).place : PlaceId();
}

PlaceId ResidentSet::place_of(BlockId id) const {
  return num_places_ > 0 ? entry(id).place : PlaceId();
}

PlaceId ResidentSet::admit(BlockId id, bool begins_sequence) {
  if (num_places_ == 0) return {};
  remove(id);  // the block is written again: its old copy is stale
  if (free_places_.empty()) make_room();
  entry(id) = {.place = free_places_.back(), .begins_sequence = begins_sequence};
  free_places_.pop_back();
  order_.push_back(id);
  return entry(id).place;
}

void ResidentSet::complete(BlockId id) {
  if (place_of(id).valid()) entry(id).is_complete = true;
}

// Frees the place of the oldest block that begins no sequence, or of the oldest one if all do.
void ResidentSet::make_room() {
  const auto is_inner = [this](BlockId id) { return !entry(id).begins_sequence; };
  const auto inner = std::find_if(order_.begin(), order_.end(), is_inner);
  remove(inner != order_.end() ? *inner : order_.front());
}

void ResidentSet::remove(BlockId id) {
  if (!place_of(id).valid()) return;
  free_places_.push_back(entry(id).place);
  entry(id) = {};
  order_.erase(std::find(order_.begin(), order_.end(), id));
}

}  // namespace sluice
