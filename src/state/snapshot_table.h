// SnapshotTable: which prefixes have a snapshot of their recurrent states, in which place of host
// memory, and which snapshot goes when there is no place for a new one.
//
// Owned by engine/kv/state_snapshots; the bytes are StatePool's. A snapshot is named by the id of
// the prefix after which it was taken (Prefix::id, kv/prefix_index.h), and knows the one before it
// in the same text; so snapshots form trees, and a leaf with those before it that no other leaf has
// is a chain. Where there is no place, the chain that was used longest ago loses the snapshot
// beside which the others lie densest, but never its last one, the deepest, while it has another:
// the deepest saves most, and of the others those saves most that stand alone. There are tens to
// thousands, so they are searched one by one. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/ids.h"

namespace sluice {

// How many snapshots there are and how dense they are taken.
struct SnapshotSizes {
  int32_t num_places = 0;       // snapshots that have memory; 0: none are taken
  int64_t interval_tokens = 1;  // from one to the next in a prompt; rounded to where hits may end
};

class SnapshotTable {
 public:
  explicit SnapshotTable(int32_t num_places);

  // The place of the prefix's snapshot; not valid: it has none.
  SnapshotId find(int64_t prefix) const;
  bool contains(int64_t prefix) const { return nodes_.contains(prefix); }

  // A place for a snapshot after `prefix`, which has `num_tokens`; `before` is the deepest prefix
  // of the same text that has one, or 0. Its bytes are undefined. Another snapshot may be dropped
  // for it. Not valid, with nothing changed, if none may be.
  // REQUIRES: the prefix has none; `before` is 0 or has one of fewer tokens.
  SnapshotId add(int64_t prefix, int64_t before, int64_t num_tokens);
  // A sequence goes on from it: it counts as used now, and with it its chain.
  void use(int64_t prefix);
  // Forgets it; those after it follow the one before it. No effect if the prefix has none.
  // REQUIRES: it is not held.
  void drop(int64_t prefix);
  // Whether none goes on from it and none holds it.
  bool is_loose(int64_t prefix) const;

  // While it is held it stays. Each hold ends by one unhold. REQUIRES: the prefix has one.
  void hold(int64_t prefix);
  void unhold(int64_t prefix);

  int32_t num_places() const { return num_places_; }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  // Since construction, for want of a place.
  int64_t num_evicted() const { return num_evicted_; }

 private:
  struct Node {
    SnapshotId place;
    int64_t before = 0;  // 0: none
    int64_t num_tokens = 0;
    int64_t last_use = 0;
    int32_t num_after = 0;  // that have it as `before`
    int32_t num_holds = 0;
  };
  // What a chain would give, and when it was used.
  struct Offer {
    int64_t prefix = 0;  // 0: nothing
    int64_t last_use = 0;
  };

  Node& node(int64_t prefix);
  const Node& node(int64_t prefix) const;
  Offer offer_of(int64_t leaf) const;
  int64_t choose() const;

  int32_t num_places_;
  std::vector<SnapshotId> free_;
  std::unordered_map<int64_t, Node> nodes_;  // by prefix
  int64_t clock_ = 0;
  int64_t num_evicted_ = 0;
};

}  // namespace sluice
