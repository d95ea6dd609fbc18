// HotPageTally: the hit rate of an engine's hot pages beside that of an LRU cache of as many
// places, simulated with the lists that the engine read.
//
// Used by `sluice-lab overlap` where --kv-device-bytes makes the engine keep hot pages. With one
// sequence both must count the same. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/page_overlap.h"
#include "sluice/observations.h"

namespace sluice::lab {

// Pages of the lists of one layer, or of all, in blocks that are not on the device.
struct HotShares {
  int64_t num_hits = 0, num_misses = 0;  // counted by the engine
  int64_t lru_hits = 0, lru_misses = 0;  // of the simulated cache
  int64_t num_chosen = 0;                // of these pages, chosen by score

  double engine_share() const;
  double lru_share() const;
  // Of the pages chosen by score. Sinks and window miss only when a block leaves the device, so all
  // misses count as theirs.
  double chosen_share() const;
  void add(const HotShares& more);
};

class HotPageTally {
 public:
  // `num_places`: pages of a layer and KV head.
  HotPageTally(int32_t num_layers, int32_t num_places)
      : num_places_(num_places), heads_(num_layers), shares_(num_layers) {}

  int32_t num_places() const { return num_places_; }

  // The list of a step, heads of a layer in order: `pages` in its order, of which `num_chosen` were
  // chosen by score. `counts` is false for steps that only fill the cache.
  void add_list(size_t layer, size_t head, const std::vector<int32_t>& pages, int64_t num_chosen,
                bool counts);
  // What the engine has counted in its decode steps: before the steps that count, and after them.
  void begin(const PhaseObservations& decode) { count(decode, -1); }
  void end(const PhaseObservations& decode) { count(decode, 1); }

  const std::vector<HotShares>& layers() const { return shares_; }

 private:
  void count(const PhaseObservations& decode, int64_t sign);

  int32_t num_places_;
  std::vector<std::vector<PageOverlap>> heads_;  // by layer, then head
  std::vector<HotShares> shares_;                // by layer
};

}  // namespace sluice::lab
