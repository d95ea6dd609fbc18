// Finds and gives places one key at a time.
#include "ops/reference/hot_pages.h"

#include <algorithm>
#include <set>

namespace sluice::reference {

// Moves a place behind all others.
void HotPageSet::use(int32_t place) {
  order_.remove(place);
  order_.push_back(place);
}

HotPageSet::Step HotPageSet::find(const std::vector<int32_t>& keys) {
  Step step;
  // Pages that the step lists keep their places, also those that come later in it.
  std::set<int32_t> kept;
  for (const int32_t key : keys) {
    if (const auto found = place_of_key_.find(key); found != place_of_key_.end()) {
      kept.insert(found->second);
    }
  }
  for (const int32_t key : keys) {
    if (place_of_key_.contains(key)) continue;
    auto place = static_cast<int32_t>(order_.size());
    if (place == num_places_) {
      place = *std::ranges::find_if(order_, [&](int32_t old) { return !kept.contains(old); });
    }
    step.num_evictions +=
        std::erase_if(place_of_key_, [&](const auto& entry) { return entry.second == place; });
    place_of_key_[key] = place;
    kept.insert(place);
    use(place);
    step.missing.push_back({key, place});
  }
  for (const int32_t key : keys) {
    step.places.push_back(place_of_key_[key]);
    use(place_of_key_[key]);
  }
  return step;
}

}  // namespace sluice::reference
