// Sums in the order in which tiles are added.
#include "lab/recall/recall_tally.h"

#include <algorithm>

#include "core/error.h"

namespace sluice::lab {
namespace {

constexpr double kLowShare = 0.05;
// Mass below which nothing is lost; the sums of true masses are this exact.
constexpr double kNothingLost = 1e-9;

}  // namespace

RecallTally::RecallTally(int64_t num_cells, int64_t num_heads)
    : num_heads_(num_heads), sums_(static_cast<size_t>(num_cells * num_heads)) {
  SLUICE_CHECK(num_cells > 0 && num_heads > 0, "{} cells, {} heads", num_cells, num_heads);
}

const RecallTally::Sums& RecallTally::sums(int64_t cell, int64_t head) const {
  const Sums& sums = sums_.at(static_cast<size_t>(cell * num_heads_ + head));
  SLUICE_CHECK(sums.count > 0, "cell {} has no tile of head {}", cell, head);
  return sums;
}

void RecallTally::add(int64_t cell, int64_t head, double mass, double tile_share) {
  Sums& sums = sums_.at(static_cast<size_t>(cell * num_heads_ + head));
  sums.mass += mass;
  sums.tile_share += tile_share;
  ++sums.count;
}

double RecallTally::head_mean(int64_t cell, int64_t head) const {
  const Sums& of_head = sums(cell, head);
  return of_head.mass / static_cast<double>(of_head.count);
}

RecallSummary RecallTally::summary(int64_t cell) const {
  RecallSummary summary;
  std::vector<double> means;
  for (int64_t head = 0; head < num_heads_; ++head) {
    const Sums& of_head = sums(cell, head);
    means.push_back(head_mean(cell, head));
    summary.mean += means.back() / static_cast<double>(num_heads_);
    summary.tile_share += of_head.tile_share / static_cast<double>(of_head.count * num_heads_);
  }
  std::sort(means.begin(), means.end());
  summary.p5 = means[static_cast<size_t>(kLowShare * static_cast<double>(num_heads_))];
  return summary;
}

double lost_of_oracle(const RecallSummary& method, const RecallSummary& oracle) {
  const double lost = 1 - method.mean;
  const double lost_by_oracle = 1 - oracle.mean;
  if (lost < kNothingLost && lost_by_oracle < kNothingLost) return 1;
  return lost / std::max(lost_by_oracle, kNothingLost);
}

}  // namespace sluice::lab
