// PageOverlap: what the page lists of successive decode steps have in common, and what a cache of
// pages would therefore hold.
//
// Used by `sluice bench overlap`, for each layer and KV head. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace sluice::cli {

// Of the pages of one step, the share that ...
struct StepOverlap {
  double previous = 0;         // the step before had too
  double last_4 = 0;           // one of the four steps before had
  double last_16 = 0;          // one of the sixteen before
  std::vector<double> caches;  // each LRU cache held when the step began
};

class PageOverlap {
 public:
  static constexpr int32_t kWindow = 16;  // steps before the widest window is full

  // `cache_pages`: how many pages each cache holds.
  explicit PageOverlap(std::vector<int64_t> cache_pages) : cache_pages_(std::move(cache_pages)) {}

  // Takes the next step's pages (each once, in any order) and compares them with those before. A
  // step looks into the caches with its whole list before it changes them, as a gather would: a
  // cache as large as a list holds exactly the step before.
  // REQUIRES: at least one page.
  StepOverlap add_step(const std::vector<int32_t>& pages);

 private:
  std::vector<int64_t> cache_pages_;
  int64_t step_ = 0;
  std::unordered_map<int32_t, int64_t> last_step_;  // of each page seen: the newest that had it
  // Pages seen, newest first. LRU caches of all sizes are beginnings of this one list.
  std::vector<int32_t> recency_;
};

struct OverlapSummary {
  int64_t num_steps = 0;
  StepOverlap mean;
  double previous_p10 = 0;  // nine of ten steps share at least this much with the one before
};

// REQUIRES: at least one step, all with as many caches.
OverlapSummary summarize(const std::vector<StepOverlap>& steps);

}  // namespace sluice::cli
