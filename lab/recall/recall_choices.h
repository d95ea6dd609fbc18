// What sluice-lab recall asks of a query tile: the rules, the controls beside the estimators, and
// which query tiles are measured.
//
// The oracle and the controls go through the rule of the engine (ops/tiles/tile_rule.h) with masses
// made here, so that they differ from an estimator in the masses alone. Estimators with columns
// (TileColumns of ops/attention/attention.h) get fewer tiles, so that all do equal work. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/tiles/tile_rule.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::lab {

// A selection that is asked for: tiles of a given number, or with a given share of the mass.
struct RecallAsk {
  bool is_coverage = false;
  double share = 0;  // of the tiles, or of the mass; in (0, 1)
};

// Single tokens that an estimator attends to beside its tiles.
enum class RecallColumns {
  kNone,
  kOfRows,     // those with the most mass for 512 rows, by one probe row of each tile, as `sampled`
  kVerticals,  // and tile diagonals in place of tiles, by the last rows of 4096, as `minference`
};

// An estimator as a command line would name it.
struct Estimator {
  std::string name;  // "rows 4", "rows 4 of a quarter", "antidiagonal 16", "pooled 128"
  TileProbes probes;
  bool has_first_stage = false;  // which leaves tiles out (attention/policies/first_stage.h)
  RecallColumns columns = RecallColumns::kNone;

  // Of verticals and diagonals the engine has numbers, not a coverage.
  bool has_coverage() const { return columns != RecallColumns::kVerticals; }
  // Rows that share columns; 128 without.
  int32_t segment_tokens() const;
};

// The tiles of `share` of those that query tile `q_tile` sees, rounded; at least the forced ones.
int32_t num_tiles_of(double share, int32_t q_tile);

// What an ask is for an estimator.
struct RecallRule {
  TileRule tiles;
  int32_t column_tiles = 0;  // tiles of 128 columns, all of them full
};

// The rule that takes as many tiles as are asked for, forced ones included, or that covers the
// share of all mass. Sink and window are one tile and the diagonal with the tile before it; there
// is no threshold and no tail. Columns count as the tiles that they fill: one, or of verticals a
// fifth of what is asked for; none where the forced tiles leave no room.
// REQUIRES: a coverage is asked of estimators that have one.
RecallRule rule_of(const RecallAsk& ask, int32_t q_tile,
                   RecallColumns columns = RecallColumns::kNone);

// Masses for take_tiles: true ones rounded down to its unit, ones by which the newest tiles win,
// and pseudo-random ones by which each tile is as likely as any other.
std::vector<uint32_t> rounded_masses(std::span<const double> tile_mass);
std::vector<uint32_t> newest_masses(int32_t q_tile);
std::vector<uint32_t> random_masses(int32_t q_tile, uint64_t seed);

// What a method attends to for a query tile of one KV head.
struct RecallChoice {
  std::vector<bool> tiles;       // [q_tile + 1]
  std::vector<int32_t> columns;  // positions outside these tiles, ascending
  int32_t num_column_tiles = 0;  // tiles of 128 columns that hold one of them

  // Of the tiles that the query tile sees; a tile of columns is as much work as another one.
  double work() const;
};

// Reads it from the memory of a selection, which is the host's on the CPU device. All tiles without
// a mask; `columns` may be absent.
RecallChoice read_choice(const TileMask& mask, const TileColumns& columns, int32_t kv_head,
                         int32_t q_tile);

// The mass that it holds. REQUIRES: the masses are of the tiles and tokens up to the query tile.
double mass_of_choice(const RecallChoice& choice, std::span<const double> tile_mass,
                      std::span<const double> token_mass);

// take_tiles for a query tile that is not the end of its prompt.
std::vector<bool> choose_tiles(const RecallAsk& ask, int32_t q_tile,
                               std::span<const uint32_t> masses);

// `count` of the query tiles [first, end), chosen by a hash and in ascending order; all of them if
// count is 0 or there are no more.
std::vector<int32_t> sampled_tiles(int32_t first, int32_t end, int32_t count);

// All kinds of probes with the sizes that policies offer, and both kinds of columns.
std::vector<Estimator> all_estimators();

}  // namespace sluice::lab
