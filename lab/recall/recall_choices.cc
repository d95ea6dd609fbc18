// Rules, masses of the controls, and the list of estimators.
#include "lab/recall/recall_choices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "attention/policies/sampled.h"
#include "attention/policy_options.h"
#include "core/error.h"
#include "eval/random.h"
#include "ops/reference/softmax_mass.h"

namespace sluice::lab {

using namespace eval;  // pictures and random numbers

namespace {

// Of the work of verticals and diagonals; an adaptive budget of minference has the same.
constexpr double kVerticalPart = 0.2;

// A prompt that ends far behind every query tile.
constexpr int64_t kPromptEnd = int64_t{1} << 40;

// The rule's sink and window, which force tiles.
TileRule forced_rule() { return {.sink_tokens = 128, .recent_tokens = 128, .tail_tokens = 0}; }

QueryTile tile_of(int32_t q_tile) { return {.q_tile = q_tile, .prompt_end = kPromptEnd}; }

int32_t num_forced(int32_t q_tile) {
  int32_t count = 0;
  for (int32_t j = 0; j <= q_tile; ++j) {
    count += is_forced(forced_rule(), tile_of(q_tile), j) ? 1 : 0;
  }
  return count;
}

// Columns of a tile that the mask has are attended there.
void read_columns(const TileColumns& columns, int32_t kv_head, int32_t q_tile,
                  RecallChoice& choice) {
  const int64_t segment =
      int64_t{q_tile} * kMaskTileTokens / columns.segment_tokens - columns.first_segment;
  const int64_t list = (columns.count.dim(0) == 1 ? 0 : kv_head) * columns.count.dim(1) + segment;
  const int32_t* positions = columns.positions.data<int32_t>() + list * columns.positions.dim(2);
  int32_t last_tile = -1;
  for (int32_t i = 0; i < columns.count.data<int32_t>()[list]; ++i) {
    const int32_t kv_tile = positions[i] / kMaskTileTokens;
    if (kv_tile > q_tile || choice.tiles[static_cast<size_t>(kv_tile)]) continue;
    choice.columns.push_back(positions[i]);
    choice.num_column_tiles += i / kMaskTileTokens != last_tile ? 1 : 0;
    last_tile = i / kMaskTileTokens;
  }
}

// Where there is room.
int32_t wanted_column_tiles(const RecallAsk& ask, int32_t q_tile, RecallColumns columns) {
  if (columns == RecallColumns::kNone) return 0;
  if (columns == RecallColumns::kOfRows) return 1;
  return std::max(
      1, static_cast<int32_t>(std::lround(kVerticalPart * num_tiles_of(ask.share, q_tile))));
}

}  // namespace

int32_t Estimator::segment_tokens() const {
  switch (columns) {
    case RecallColumns::kOfRows:
      return SampledPolicy(SparseOptions{}).prefill_scope_tokens();
    case RecallColumns::kVerticals:
      return segment_tokens_of(SparseOptions{});
    default:
      return kMaskTileTokens;
  }
}

int32_t num_tiles_of(double share, int32_t q_tile) {
  const auto asked = static_cast<int32_t>(std::lround(share * (q_tile + 1)));
  return std::max(asked, num_forced(q_tile));
}

RecallRule rule_of(const RecallAsk& ask, int32_t q_tile, RecallColumns columns) {
  RecallRule rule{.tiles = forced_rule()};
  const int32_t wanted = wanted_column_tiles(ask, q_tile, columns);
  if (ask.is_coverage) {
    SLUICE_CHECK(columns != RecallColumns::kVerticals, "a coverage of verticals");
    rule.tiles.choice = TileChoice::kCoverage;
    rule.tiles.share = static_cast<uint32_t>(std::lround(ask.share * kMassOne));
    rule.column_tiles = wanted;
  } else {
    const int32_t room = num_tiles_of(ask.share, q_tile) - num_forced(q_tile);
    rule.column_tiles = std::min(wanted, room);
    rule.tiles.choice = TileChoice::kTop;
    rule.tiles.top_tiles = room - rule.column_tiles;
  }
  return rule;
}

std::vector<uint32_t> rounded_masses(std::span<const double> tile_mass) {
  std::vector<uint32_t> masses;
  for (const double mass : tile_mass) {
    masses.push_back(static_cast<uint32_t>(std::clamp(mass, 0.0, 1.0) * kMassOne));
  }
  return masses;
}

std::vector<uint32_t> newest_masses(int32_t q_tile) {
  std::vector<uint32_t> masses(static_cast<size_t>(q_tile) + 1);
  std::iota(masses.begin(), masses.end(), 1u);
  return masses;
}

std::vector<uint32_t> random_masses(int32_t q_tile, uint64_t seed) {
  Random random(seed);
  std::vector<uint32_t> masses;
  for (int32_t j = 0; j <= q_tile; ++j) {
    masses.push_back(static_cast<uint32_t>(random.below(kMassOne)) + 1);
  }
  return masses;
}

double RecallChoice::work() const {
  const auto num_set = std::count(tiles.begin(), tiles.end(), true);
  return static_cast<double>(num_set + num_column_tiles) / static_cast<double>(tiles.size());
}

RecallChoice read_choice(const TileMask& mask, const TileColumns& columns, int32_t kv_head,
                         int32_t q_tile) {
  RecallChoice choice{.tiles = std::vector<bool>(static_cast<size_t>(q_tile) + 1, true)};
  if (!mask.present()) return choice;
  const TensorView& bits = mask.bits;
  const int64_t list = (bits.dim(1) == 1 ? 0 : kv_head) * bits.dim(2) + q_tile - mask.first_q_tile;
  const auto* words = reinterpret_cast<const uint32_t*>(bits.data<int32_t>()) + list * bits.dim(3);
  for (size_t tile = 0; tile < choice.tiles.size(); ++tile) {
    choice.tiles[tile] = (words[tile / 32] >> (tile % 32) & 1u) != 0;
  }
  if (columns.present()) read_columns(columns, kv_head, q_tile, choice);
  return choice;
}

double mass_of_choice(const RecallChoice& choice, std::span<const double> tile_mass,
                      std::span<const double> token_mass) {
  double mass = reference::mass_of_tiles(tile_mass, choice.tiles);
  for (const int32_t position : choice.columns) mass += token_mass[static_cast<size_t>(position)];
  return mass;
}

std::vector<bool> choose_tiles(const RecallAsk& ask, int32_t q_tile,
                               std::span<const uint32_t> masses) {
  return take_tiles(rule_of(ask, q_tile).tiles, tile_of(q_tile), masses).is_set;
}

std::vector<int32_t> sampled_tiles(int32_t first, int32_t end, int32_t count) {
  std::vector<int32_t> tiles(static_cast<size_t>(std::max(0, end - first)));
  std::iota(tiles.begin(), tiles.end(), first);
  if (count == 0 || count >= std::ssize(tiles)) return tiles;
  const auto hash = [](int32_t tile) { return Random(static_cast<uint64_t>(tile)).next(); };
  std::sort(tiles.begin(), tiles.end(), [&](int32_t a, int32_t b) { return hash(a) < hash(b); });
  tiles.resize(static_cast<size_t>(count));
  std::sort(tiles.begin(), tiles.end());
  return tiles;
}

std::vector<Estimator> all_estimators() {
  std::vector<Estimator> estimators;
  for (const int32_t rows : {1, 2, 4, 8, 16}) {
    estimators.push_back(
        {fmt::format("rows {}", rows), {.kind = TileProbeKind::kRows, .rows_per_tile = rows}});
  }
  estimators.push_back({"rows 4 of a quarter", {.rows_per_tile = 4}, true});
  estimators.push_back({"rows 4, columns", {.rows_per_tile = 4}, false, RecallColumns::kOfRows});
  estimators.push_back({"verticals", {}, false, RecallColumns::kVerticals});
  for (const int32_t stride : {4, 8, 16, 32}) {
    estimators.push_back({fmt::format("antidiagonal {}", stride),
                          {.kind = TileProbeKind::kAntidiagonal, .stride = stride}});
  }
  for (const int32_t tokens : {8, 16, 128}) {
    estimators.push_back({fmt::format("pooled {}", tokens),
                          {.kind = TileProbeKind::kPooled, .key_pool_tokens = tokens}});
  }
  return estimators;
}

}  // namespace sluice::lab
