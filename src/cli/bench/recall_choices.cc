// Rules, masses of the controls, and the list of estimators.
#include "cli/bench/recall_choices.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "cli/needle/random.h"
#include "ops/attention.h"

namespace sluice::cli {
namespace {

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

}  // namespace

int32_t num_tiles_of(double share, int32_t q_tile) {
  const auto asked = static_cast<int32_t>(std::lround(share * (q_tile + 1)));
  return std::max(asked, num_forced(q_tile));
}

TileRule rule_of(const RecallAsk& ask, int32_t q_tile) {
  TileRule rule = forced_rule();
  if (ask.is_coverage) {
    rule.choice = TileChoice::kCoverage;
    rule.share = static_cast<uint32_t>(std::lround(ask.share * kMassOne));
  } else {
    rule.choice = TileChoice::kTop;
    rule.top_tiles = num_tiles_of(ask.share, q_tile) - num_forced(q_tile);
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

std::vector<bool> choose_tiles(const RecallAsk& ask, int32_t q_tile,
                               std::span<const uint32_t> masses) {
  return take_tiles(rule_of(ask, q_tile), tile_of(q_tile), masses).is_set;
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

}  // namespace sluice::cli
