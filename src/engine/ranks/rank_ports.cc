// All ranks or none: a block that has no room on one rank waits for it there, or leaves the others.
#include "engine/ranks/rank_ports.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace sluice {

RankPorts::RankPorts(Parts parts) : parts_(std::move(parts)) {
  parts_.others.visit([this](int32_t, Rank& place) {  //
    others_.push_back(place.residency().make_port());
  });
}

// Their ports use streams of theirs, on which nothing may run then.
RankPorts::~RankPorts() { parts_.others.stop(); }

// The events before: a port needs to know which blocks are full, and which are not used any more.
void RankPorts::visit(const std::function<void(size_t rank, BlockPort& port)>& use) {
  parts_.messages.send_events();
  parts_.others.visit([&](int32_t rank, Rank&) {
    const auto index = static_cast<size_t>(rank);
    use(index, *others_[index - 1]);
  });
}

// Rooms become free when a stream has come so far, so the first rank may have one before others.
bool RankPorts::begin_out(BlockId id) {
  if (!parts_.first->begin_out(id)) return false;
  std::vector<Way> ways(others_.size() + 1, Way::kWaits);
  ways[0] = Way::kMoves;
  move_out(id, ways);
  out_[id] = std::move(ways);
  layers_[id].resize(others_.size() + 1);
  return true;
}

// Of ranks whose port had no room for the block yet.
void RankPorts::move_out(BlockId id, std::vector<Way>& ways) {
  visit([&](size_t rank, BlockPort& port) {
    if (ways[rank] == Way::kWaits && port.begin_out(id)) ways[rank] = Way::kMoves;
  });
}

// Ranks that have brought their part are not asked again.
bool RankPorts::is_out(BlockId id) {
  std::vector<Way>& ways = out_.at(id);
  std::vector<Layers>& layers = layers_.at(id);
  const auto look = [&](size_t rank, BlockPort& port) {
    if (ways[rank] != Way::kMoves || !port.is_out(id)) return;
    ways[rank] = Way::kIsOut;
    layers[rank] = port.layers(id);
  };
  look(0, *parts_.first);
  const auto is_there = [](Way way) { return way == Way::kIsOut; };
  if (!std::all_of(ways.begin() + 1, ways.end(), is_there)) {
    move_out(id, ways);
    visit(look);
  }
  return std::ranges::all_of(ways, is_there);
}

// All parts are out by then, so each rank has a room to give back.
void RankPorts::end_out(BlockId id) {
  parts_.first->end_out(id);
  visit([&](size_t, BlockPort& port) { port.end_out(id); });
  out_.erase(id);
  layers_.erase(id);
}

void RankPorts::settle() {
  parts_.first->settle();
  visit([](size_t, BlockPort& port) { port.settle(); });
}

// A room that was taken in vain is given back at once: nothing has used it.
bool RankPorts::begin_in(BlockId id) {
  if (!parts_.first->begin_in(id)) return false;
  std::vector<Layers> layers = {parts_.first->layers(id)};
  visit([&](size_t rank, BlockPort& port) {
    if (layers.size() == rank && port.begin_in(id)) layers.push_back(port.layers(id));
  });
  if (layers.size() > others_.size()) {
    layers_[id] = std::move(layers);
    return true;
  }
  parts_.first->end_in(id, /*is_whole=*/false);
  visit([&](size_t rank, BlockPort& port) {
    if (rank < layers.size()) port.end_in(id, /*is_whole=*/false);
  });
  return false;
}

// Only the first of several ranks with the same heads was read into: the others get its bytes
// before their ports take them. Ranks are visited in order, so the one before has them already.
void RankPorts::end_in(BlockId id, bool is_whole) {
  const std::vector<Layers>& layers = layers_.at(id);
  const auto end = [&](size_t rank, BlockPort& port) {
    if (is_whole && is_copy(rank)) {
      for (size_t i = 0; i < layers[rank].size(); ++i) {
        const std::span<std::byte> to = layers[rank][i];
        std::memcpy(to.data(), layers[rank - 1][i].data(), to.size());
      }
    }
    port.end_in(id, is_whole);
  };
  end(0, *parts_.first);
  visit(end);
  layers_.erase(id);
}

// The heads of a layer lie in order: those of the first rank, those of the next.
std::vector<std::span<std::byte>> RankPorts::layers(BlockId id) const {
  const std::vector<Layers>& all = layers_.at(id);
  Layers layers;
  for (size_t i = 0; i < all.front().size(); ++i) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!is_copy(rank)) layers.push_back(all[rank][i]);
    }
  }
  return layers;
}

}  // namespace sluice
