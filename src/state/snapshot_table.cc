// Chains are found from their leaves; what a chain gives is chosen by the gap that it leaves.
#include "state/snapshot_table.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace sluice {

SnapshotTable::SnapshotTable(int32_t num_places) : num_places_(num_places) {
  SLUICE_CHECK(num_places >= 0, "{} places", num_places);
  for (int32_t i = num_places; i > 0; --i) free_.emplace_back(i - 1);
}

SnapshotTable::Node& SnapshotTable::node(int64_t prefix) {
  const auto found = nodes_.find(prefix);
  SLUICE_CHECK(found != nodes_.end(), "prefix {} has no snapshot", prefix);
  return found->second;
}

const SnapshotTable::Node& SnapshotTable::node(int64_t prefix) const {
  return const_cast<SnapshotTable*>(this)->node(prefix);
}

SnapshotId SnapshotTable::find(int64_t prefix) const {
  const auto found = nodes_.find(prefix);
  return found == nodes_.end() ? SnapshotId() : found->second.place;
}

// The new one is entered first and held, so that its own chain is judged with it.
SnapshotId SnapshotTable::add(int64_t prefix, int64_t before, int64_t num_tokens) {
  SLUICE_CHECK(prefix > 0 && !contains(prefix), "prefix {} has a snapshot", prefix);
  if (before != 0) {
    SLUICE_CHECK(node(before).num_tokens < num_tokens, "{} tokens after {}", num_tokens,
                 node(before).num_tokens);
    ++node(before).num_after;
  }
  nodes_[prefix] = {.before = before, .num_tokens = num_tokens, .last_use = ++clock_};
  if (free_.empty()) {
    hold(prefix);
    const int64_t victim = choose();
    unhold(prefix);
    if (victim != 0) {
      drop(victim);
      ++num_evicted_;
    }
  }
  if (free_.empty()) {
    nodes_.erase(prefix);
    if (before != 0) --node(before).num_after;
    return {};
  }
  node(prefix).place = free_.back();
  free_.pop_back();
  return node(prefix).place;
}

void SnapshotTable::use(int64_t prefix) { node(prefix).last_use = ++clock_; }

void SnapshotTable::drop(int64_t prefix) {
  const auto found = nodes_.find(prefix);
  if (found == nodes_.end()) return;
  const Node gone = found->second;
  SLUICE_CHECK(gone.num_holds == 0, "the snapshot of prefix {} is held", prefix);
  nodes_.erase(found);
  if (gone.before != 0) node(gone.before).num_after += gone.num_after - 1;
  if (gone.num_after > 0) {
    for (auto& [id, other] : nodes_) {
      if (other.before == prefix) other.before = gone.before;
    }
  }
  free_.push_back(gone.place);
}

bool SnapshotTable::is_loose(int64_t prefix) const {
  return node(prefix).num_after == 0 && node(prefix).num_holds == 0;
}

void SnapshotTable::hold(int64_t prefix) { ++node(prefix).num_holds; }

void SnapshotTable::unhold(int64_t prefix) {
  SLUICE_CHECK(node(prefix).num_holds > 0, "the snapshot of prefix {} is not held", prefix);
  --node(prefix).num_holds;
}

// Walks from the leaf up to where another chain joins. The gap that a snapshot leaves is the way
// from the one before it to the one after it; of equal ones the first goes.
SnapshotTable::Offer SnapshotTable::offer_of(int64_t leaf) const {
  const Node* after = &node(leaf);
  Offer offer{.prefix = after->num_holds == 0 ? leaf : 0, .last_use = after->last_use};
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (int64_t id = after->before; id != 0 && node(id).num_after == 1; id = after->before) {
    const Node& inner = node(id);
    offer.last_use = std::max(offer.last_use, inner.last_use);
    const int64_t begin = inner.before != 0 ? node(inner.before).num_tokens : 0;
    const int64_t gap = after->num_tokens - begin;
    if (inner.num_holds == 0 && gap <= smallest) {
      smallest = gap;
      offer.prefix = id;
    }
    after = &inner;
  }
  return offer;
}

// What the chain gives that was used longest ago, of those that give something.
int64_t SnapshotTable::choose() const {
  Offer best;
  for (const auto& [id, leaf] : nodes_) {
    if (leaf.num_after > 0) continue;
    const Offer offer = offer_of(id);
    const bool is_better = best.prefix == 0 || offer.last_use < best.last_use;
    if (offer.prefix != 0 && is_better) best = offer;
  }
  return best.prefix;
}

}  // namespace sluice
