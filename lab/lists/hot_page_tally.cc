// Sums of hits and misses.
#include "lab/lists/hot_page_tally.h"

#include <algorithm>
#include <cmath>

namespace sluice::lab {
namespace {

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

}  // namespace

double HotShares::engine_share() const { return share(num_hits, num_hits + num_misses); }
double HotShares::lru_share() const { return share(lru_hits, lru_hits + lru_misses); }
double HotShares::chosen_share() const { return share(num_chosen - num_misses, num_chosen); }

void HotShares::add(const HotShares& more) {
  num_hits += more.num_hits;
  num_misses += more.num_misses;
  lru_hits += more.lru_hits;
  lru_misses += more.lru_misses;
  num_chosen += more.num_chosen;
}

void HotPageTally::add_list(size_t layer, size_t head, const std::vector<int32_t>& pages,
                            int64_t num_chosen, bool counts) {
  if (heads_[layer].size() == head) heads_[layer].emplace_back(std::vector<int64_t>{num_places_});
  if (pages.empty()) return;
  const double held = heads_[layer][head].add_step(pages).caches[0];
  if (!counts) return;
  const auto num_hits = std::llround(held * static_cast<double>(pages.size()));
  shares_[layer].lru_hits += num_hits;
  shares_[layer].lru_misses += std::ssize(pages) - num_hits;
  shares_[layer].num_chosen += num_chosen;
}

void HotPageTally::count(const PhaseObservations& decode, int64_t sign) {
  for (size_t layer = 0; layer < shares_.size(); ++layer) {
    const HotPageObservations& hot = decode.layers.at(layer).hot_pages;
    shares_[layer].num_hits += sign * hot.num_hits;
    shares_[layer].num_misses += sign * hot.num_misses;
  }
}

}  // namespace sluice::lab
