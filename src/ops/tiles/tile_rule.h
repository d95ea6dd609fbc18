// TileRule: which KV tiles a query tile attends to, from the softmax mass that each of them holds.
//
// Used by the op that makes tile masks, on the CPU and as the reference of its CUDA kernel, and by
// the policies of sparse prefill. Masses are integers, so that the order of additions cannot change
// a choice. What is constexpr is the kernel's as well. Thread rule: values; pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention/attention.h"

namespace sluice {

// The unit of masses and of the shares in a rule: 1.0.
inline constexpr uint32_t kMassOne = uint32_t{1} << 30;

// A share of the softmax mass in units of kMassOne, rounded down; 0 for NaN, which no comparison
// lets through.
constexpr uint32_t to_mass(float share) {
  if (!(share > 0.0f)) return 0;
  return share >= 1.0f ? kMassOne : static_cast<uint32_t>(share * static_cast<float>(kMassOne));
}

// That share of a sum of integers, rounded up. REQUIRES: total < 2^62, share <= kMassOne.
constexpr uint64_t share_of_total(uint64_t total, uint32_t share) {
  return total / kMassOne * share + (total % kMassOne * share + kMassOne - 1) / kMassOne;
}

// Chooses among the tiles that are not forced.
enum class TileChoice {
  kCoverage,  // the heaviest tiles, until together with the forced ones they hold `share` of all
  kTop,       // the `top_tiles` heaviest
  kAlpha,     // every tile with at least `share` of the heaviest tile's mass, forced ones included
  kPart,      // the heaviest, `share` of the number of tiles that the query tile sees, rounded up
};

// That share of this many keys, rounded up. REQUIRES: share <= kMassOne.
constexpr int64_t share_of_keys(uint32_t share, int64_t num_keys) {
  return (int64_t{share} * num_keys + (kMassOne - 1)) / kMassOne;
}

struct TileRule {
  TileChoice choice = TileChoice::kCoverage;
  uint32_t share = kMassOne;  // kCoverage, kAlpha, kPart: of kMassOne
  // kCoverage: the share is of the mass outside the forced tiles, not of all mass.
  bool is_share_of_rest = false;
  int32_t top_tiles = 0;         // kTop: beside the forced tiles
  int32_t sink_tokens = 128;     // tiles of the first tokens are forced,
  int32_t recent_tokens = 128;   // and tiles with a token of [first row - recent_tokens, last row]
  int32_t threshold_tokens = 0;  // query tiles whose first row is before it attend to everything,
  int32_t tail_tokens = 128;     // and so do those with one of the prompt's last rows
  int32_t min_tiles = 0;         // of a query tile, forced ones included: filled up by mass,
  int32_t max_tiles = 0;         // and cut by mass; forced tiles stay. 0: no bound
  // Read by select_diagonals alone. Not 0: the diagonals of a segment are also at most this share,
  // of kMassOne, of the keys up to its end, in whole tiles.
  uint32_t key_share = 0;

  // Diagonals of a segment at most, of a list that may have `max_count`.
  constexpr int64_t most_diagonals(int64_t max_count, int64_t num_keys) const {
    if (key_share == 0) return max_count;
    return std::min(max_count, mask_tiles_of(share_of_keys(key_share, num_keys)));
  }
};

// A query tile of a prompt of `prompt_end` tokens. It sees KV tiles 0 to q_tile.
struct QueryTile {
  int32_t q_tile = 0;
  int64_t prompt_end = 0;

  constexpr int64_t first_row() const { return int64_t{q_tile} * kMaskTileTokens; }
  // Its last row. The prompt's last tile may be shorter than the others.
  constexpr int64_t last_row() const {
    return std::min(first_row() + kMaskTileTokens, prompt_end) - 1;
  }
};

// Whether the rule alone says that the tile attends to everything, whatever the masses are.
constexpr bool attends_everything(const TileRule& rule, const QueryTile& tile) {
  if (tile.first_row() < rule.threshold_tokens) return true;
  if (tile.last_row() >= tile.prompt_end - rule.tail_tokens) return true;
  if (rule.choice == TileChoice::kTop) return rule.top_tiles >= tile.q_tile + 1;
  return rule.choice != TileChoice::kAlpha && rule.share >= kMassOne;
}

// kPart: how many tiles it takes beside the forced ones, if there are this many.
constexpr int32_t part_of_tiles(const TileRule& rule, const QueryTile& tile) {
  const uint64_t product = uint64_t{rule.share} * (static_cast<uint64_t>(tile.q_tile) + 1);
  return static_cast<int32_t>((product + kMassOne - 1) / kMassOne);
}

// Whether KV tile `kv_tile` is attended whatever its mass is. REQUIRES: kv_tile <= tile.q_tile.
constexpr bool is_forced(const TileRule& rule, const QueryTile& tile, int32_t kv_tile) {
  const int64_t first_token = int64_t{kv_tile} * kMaskTileTokens;
  return first_token < rule.sink_tokens ||
         first_token + kMaskTileTokens > tile.first_row() - rule.recent_tokens;
}

struct TileSelection {
  std::vector<bool> is_set;  // [q_tile + 1]
  int32_t num_cut = 0;       // tiles that the choice named and max_tiles cut off

  bool is_everything() const;
};

// Applies the rule. `mass` is that of KV tiles 0 to q_tile without what columns hold, in units of
// kMassOne; `column_mass` is held by columns that are attended as well and counts as covered. All
// together are about kMassOne (more if columns lie in tiles that no probe scored), or 0 where no
// probe row was usable: the tile then attends to everything. Tiles are taken by falling mass, of
// equal masses the lower tile first; the tile that reaches the share is taken. REQUIRES:
// mass.size() == q_tile + 1, each at most kMassOne; column_mass <= kMassOne. Source: coverage of
// the softmax mass as in Xu et al. 2025, arXiv 2503.16428 (XAttention); alpha as in FlashPrefill,
// arXiv 2603.06199.
TileSelection take_tiles(const TileRule& rule, const QueryTile& tile,
                         std::span<const uint32_t> mass, uint64_t column_mass = 0);

}  // namespace sluice
