// MassSums: what the audit of captured mass counted in several passes, by layer.
//
// Every Sequence has one for its own prefill, and the observer one for all of them. Thread rule: a
// value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sluice/observations.h"

namespace sluice {

class MassSums {
 public:
  // Adds the tallies of one sequence of a pass (MassAudit::tallies). Cost: no allocation after the
  // first call.
  void add(std::span<const int64_t> tallies, int64_t num_layers);

  // By layer; empty before the first `add`.
  std::vector<MassObservations> describe() const;

 private:
  std::vector<int64_t> sums_;  // [num_layers, counts]
  int64_t num_layers_ = 0;
};

}  // namespace sluice
