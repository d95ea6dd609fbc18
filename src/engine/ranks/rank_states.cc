#include "engine/ranks/rank_states.h"

namespace sluice {

// The events before: they save the snapshot, or restore from it.
std::vector<std::span<std::byte>> RankStates::layers(SnapshotId place) {
  std::vector<std::vector<std::span<std::byte>>> all = {first_.layers(place)};
  messages_.send_events();
  others_.visit([&](int32_t, Rank& rank) { all.push_back(rank.states()->layers(place)); });
  std::vector<std::span<std::byte>> layers;
  for (size_t i = 0; i < all.front().size(); ++i) {
    for (const auto& of_rank : all) layers.push_back(of_rank[i]);
  }
  return layers;
}

}  // namespace sluice
