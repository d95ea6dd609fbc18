// Masses of tiles from records, in the arithmetic that ops/tiles/tile_selection.h fixes.
//
// Used by tile_masses, select_tiles and choose_patterns. Thread rule: pure functions.
#pragma once

#include <cmath>
#include <vector>

#include "ops/cpu/tiles/key_tile.h"
#include "ops/tiles/tile_rule.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::cpu {

// Which heads count in a segment; all if there are no patterns.
struct HeadsCall {
  const int32_t* patterns = nullptr;  // [num_q_heads][num_segments]
  int32_t num_segments = 0;
  int32_t tiles_per_segment = 1;

  bool counts(int64_t head, int32_t entry) const {
    return patterns == nullptr || patterns[head * num_segments + entry / tiles_per_segment] ==
                                      static_cast<int32_t>(HeadPattern::kTiles);
  }
};

// Records of some query tiles as plain pointers, and the heads that share a list.
struct RecordsCall {
  const float* records;  // [num_q_heads][num_probes][num_kv_tiles]
  int32_t per_tile;
  int32_t num_probes;
  int32_t num_kv_tiles;
  int32_t heads_per_list;
  int32_t first_q_tile;  // of the rows
  HeadsCall heads;
};

// Adds the probe's share of every tile to `shares`; false if it is not usable.
inline bool add_shares(const float* records, float lse, std::vector<float>& shares) {
  const auto count = static_cast<int32_t>(shares.size());
  if (!std::isfinite(lse)) return false;
  for (int32_t j = 0; j < count; ++j) {
    shares[static_cast<size_t>(j)] += fast_exp(records[j] - lse);
  }
  return true;
}

// Integer masses of the first `num_tiles` KV tiles by the probes of query tile (or segment) `entry`
// and the heads of a list that count; all 0 without a usable probe. Gives each probe's log-sum-exp
// to on_lse(probe, lse).
template <typename F>
std::vector<uint32_t> masses_of(const RecordsCall& call, int32_t list_head, int32_t entry,
                                int32_t num_tiles, const F& on_lse) {
  std::vector<float> shares(static_cast<size_t>(num_tiles));
  int32_t num_usable = 0;
  for (int32_t h = 0; h < call.heads_per_list; ++h) {
    const int64_t head = static_cast<int64_t>(list_head) * call.heads_per_list + h;
    if (!call.heads.counts(head, entry)) continue;
    for (int32_t i = 0; i < call.per_tile; ++i) {
      const int64_t probe =
          head * call.num_probes + static_cast<int64_t>(entry) * call.per_tile + i;
      const float* records = call.records + probe * call.num_kv_tiles;
      const float lse = log_sum_exp(records, num_tiles);
      on_lse(probe, lse);
      num_usable += add_shares(records, lse, shares) ? 1 : 0;
    }
  }
  std::vector<uint32_t> masses;
  for (const float share : shares) {
    masses.push_back(num_usable > 0 ? to_mass(share / static_cast<float>(num_usable)) : 0);
  }
  return masses;
}

}  // namespace sluice::cpu
