// The first of two stages by which long contexts are scored: which tiles it keeps (ADR 0019).
//
// Means of 16 keys and of the rows of a query tile score all tiles; a quarter of them is scored by
// the probes of the second stage. Used by sampled and by `sluice bench recall`. Thread rule: pure
// functions.
#pragma once

#include <cstdint>

#include "ops/tile_rule.h"
#include "ops/tile_selection.h"

namespace sluice {

inline constexpr TileProbes kFirstStageProbes{.kind = TileProbeKind::kPooled};
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
