// What bench recall asks of a query tile: the rules, the controls beside the estimators, and which
// query tiles are measured.
//
// The oracle and the controls go through the rule of the engine (ops/tile_rule.h) with masses made
// here, so that they differ from an estimator in the masses alone. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/tile_rule.h"
#include "ops/tile_selection.h"

namespace sluice::cli {

// A selection that is asked for: tiles of a given number, or with a given share of the mass.
struct RecallAsk {
  bool is_coverage = false;
  double share = 0;  // of the tiles, or of the mass; in (0, 1)
};

// The tiles of `share` of those that query tile `q_tile` sees, rounded; at least the forced ones.
int32_t num_tiles_of(double share, int32_t q_tile);

// The rule that takes them, forced tiles included, or that covers the share of all mass. Sink and
// window are one tile and the diagonal with the tile before it; there is no threshold and no tail.
TileRule rule_of(const RecallAsk& ask, int32_t q_tile);

// Masses for take_tiles: true ones rounded down to its unit, ones by which the newest tiles win,
// and pseudo-random ones by which each tile is as likely as any other.
std::vector<uint32_t> rounded_masses(std::span<const double> tile_mass);
std::vector<uint32_t> newest_masses(int32_t q_tile);
std::vector<uint32_t> random_masses(int32_t q_tile, uint64_t seed);

// take_tiles for a query tile that is not the end of its prompt.
std::vector<bool> choose_tiles(const RecallAsk& ask, int32_t q_tile,
                               std::span<const uint32_t> masses);

// `count` of the query tiles [first, end), chosen by a hash and in ascending order; all of them if
// count is 0 or there are no more.
std::vector<int32_t> sampled_tiles(int32_t first, int32_t end, int32_t count);

// An estimator as a command line would name it.
struct Estimator {
  std::string name;  // "rows 4", "rows 4 of a quarter", "antidiagonal 16", "pooled 128"
  TileProbes probes;
  bool has_first_stage = false;  // which leaves tiles out (attention/policies/first_stage.h)
};

// All kinds of probes with the sizes that policies offer.
std::vector<Estimator> all_estimators();

}  // namespace sluice::cli
