// The cache of hot pages as an LRU list of places: what find_hot_pages must answer. Used by tests
// only. Thread rule: a plain value.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <vector>

namespace sluice::reference {

// One set.
class HotPageSet {
 public:
  explicit HotPageSet(int32_t num_places) : num_places_(num_places) {}

  struct Missing {
    int32_t key = 0;
    int32_t place = 0;
    bool operator==(const Missing&) const = default;
  };
  struct Step {
    std::vector<int32_t> places;  // of each key
    std::vector<Missing> missing;
    int64_t num_evictions = 0;
  };

  // A step that lists `keys`, of all its sequences in order.
  // REQUIRES: at most num_places keys.
  Step find(const std::vector<int32_t>& keys);
  void forget(int32_t key) { place_of_key_.erase(key); }

 private:
  void use(int32_t place);

  int32_t num_places_;
  std::map<int32_t, int32_t> place_of_key_;
  std::list<int32_t> order_;  // places that have been used, the least recently used one first
};

}  // namespace sluice::reference
