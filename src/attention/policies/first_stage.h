// The first of two stages by which long contexts are scored: which tiles it keeps (ADR 0019).
//
// The true rows of the second stage score means of 16 keys, in all tiles; a quarter of the tiles is
// then scored key by key. Used by sampled and by `sluice-lab recall`. Thread rule: pure
// functions.
#pragma once

#include <cstdint>

#include "ops/tiles/tile_rule.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// The probes of the first stage, where those of the second are `rows`. They are as many and as
// wide.
constexpr TileProbes first_stage_probes(const TileProbes& rows) {
  return {.kind = TileProbeKind::kPooled,
          .rows_per_tile = rows.rows_per_tile,
          .key_pool_tokens = 16,
          .query_pool_tokens = 0};
}

inline constexpr uint32_t kKeptShare = kMassOne / 4;  // of the number of tiles

// The rule by which query tiles that begin at `first_pos` or later keep tiles, and others all. Kept
// are the tiles that `rule` forces, and not fewer than it fills up. Where the prompt ends does not
// matter, so that the scores of rows depend on nothing new.
constexpr TileRule first_stage_rule(const TileRule& rule, int32_t first_pos) {
  return {.choice = TileChoice::kPart,
          .share = kKeptShare,
          .sink_tokens = rule.sink_tokens,
          .recent_tokens = rule.recent_tokens,
          .threshold_tokens = first_pos,
          .tail_tokens = 0,
          .min_tiles = rule.min_tiles};
}

}  // namespace sluice
