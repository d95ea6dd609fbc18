// PageOverlap: compares the page lists of successive decode steps, to estimate what a cache of
// pages on the device would hit.
//
// Used by `sluice-lab overlap`, one for each layer and KV head. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace sluice::lab {

// Shares of one step's pages, 0 to 1.
struct StepOverlap {
  double previous = 0;         // also listed by the step before
  double last_4 = 0;           // also listed by one of the four steps before
  double last_16 = 0;          // also listed by one of the sixteen steps before
  std::vector<double> caches;  // in each LRU cache when the step began
};

// The history of one list: one layer, one KV head.
class PageOverlap {
 public:
  static constexpr int32_t kWindow = 16;  // steps of the widest window; also the warm-up

  // `cache_pages`: the sizes of the simulated caches, in pages.
  explicit PageOverlap(std::vector<int64_t> cache_pages) : cache_pages_(std::move(cache_pages)) {}

  // Compares the next step's pages (each once) with those of earlier steps. A step looks up its
  // whole list before it changes the caches, as a gather would; a cache of one list's size
  // therefore holds exactly the step before. Pages are used in the order of the list, as by
  // find_hot_pages. REQUIRES: at least one page.
  StepOverlap add_step(const std::vector<int32_t>& pages);

 private:
  std::vector<int64_t> cache_pages_;
  int64_t step_ = 0;                                // steps added so far
  std::unordered_map<int32_t, int64_t> last_step_;  // by page: the newest step that listed it
  // All pages seen, newest first. Its first n pages are the contents of an LRU cache of n pages.
  std::vector<int32_t> recency_;
};

// Means over the steps of one layer, or of all layers.
struct OverlapSummary {
  int64_t num_steps = 0;  // lists compared: steps times heads
  StepOverlap mean;
  double previous_p10 = 0;  // 10th percentile of `previous`
};

// Means over steps. REQUIRES: at least one step, all with the same number of caches.
OverlapSummary summarize(const std::vector<StepOverlap>& steps);

}  // namespace sluice::lab
