// Keeps the last step of each page, and a list of pages by recency.
#include "lab/page_overlap.h"

#include <algorithm>
#include <unordered_set>

#include "core/error.h"

namespace sluice::lab {
namespace {

constexpr double kLowQuantile = 0.1;  // the quantile of previous_p10

}  // namespace

StepOverlap PageOverlap::add_step(const std::vector<int32_t>& pages) {
  SLUICE_CHECK(!pages.empty());
  const std::unordered_set<int32_t> listed(pages.begin(), pages.end());
  const double share = 1.0 / static_cast<double>(listed.size());
  StepOverlap overlap;
  overlap.caches.resize(cache_pages_.size());
  for (const int32_t page : listed) {
    const auto seen = last_step_.find(page);
    if (seen == last_step_.end()) continue;
    const int64_t age = step_ - seen->second;  // 1: the step before listed the page
    if (age <= 1) overlap.previous += share;
    if (age <= 4) overlap.last_4 += share;
    if (age <= kWindow) overlap.last_16 += share;
  }
  // An LRU cache of n pages holds the n newest, the first n of the list.
  for (size_t place = 0; place < recency_.size(); ++place) {
    if (!listed.contains(recency_[place])) continue;
    for (size_t i = 0; i < cache_pages_.size(); ++i) {
      if (static_cast<int64_t>(place) < cache_pages_[i]) overlap.caches[i] += share;
    }
  }
  // Only now the list changes: this step's pages move to the front, its last one before the others.
  std::erase_if(recency_, [&](int32_t page) { return listed.contains(page); });
  recency_.insert(recency_.begin(), pages.rbegin(), pages.rend());
  for (const int32_t page : listed) last_step_[page] = step_;
  ++step_;
  return overlap;
}

OverlapSummary summarize(const std::vector<StepOverlap>& steps) {
  SLUICE_CHECK(!steps.empty());
  const auto num_steps = static_cast<double>(steps.size());
  OverlapSummary summary{.num_steps = static_cast<int64_t>(steps.size()), .mean = {}};
  summary.mean.caches.resize(steps.front().caches.size());
  std::vector<double> previous;
  for (const StepOverlap& step : steps) {
    previous.push_back(step.previous);
    summary.mean.previous += step.previous / num_steps;
    summary.mean.last_4 += step.last_4 / num_steps;
    summary.mean.last_16 += step.last_16 / num_steps;
    for (size_t i = 0; i < step.caches.size(); ++i) {
      summary.mean.caches[i] += step.caches[i] / num_steps;
    }
  }
  std::sort(previous.begin(), previous.end());
  summary.previous_p10 = previous[static_cast<size_t>(kLowQuantile * num_steps)];
  return summary;
}

}  // namespace sluice::lab
