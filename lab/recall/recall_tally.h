// RecallTally: means over the query tiles of each head, and what they say of all heads.
//
// Used by `sluice-lab recall`. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::lab {

// One method and one ask over all heads of all layers.
struct RecallSummary {
  double mean = 0;        // captured mass, the mean of the heads' means
  double p5 = 0;          // the mean of the head below which 5 % of the heads are
  double tile_share = 0;  // tiles taken, of those that the query tiles see
};

class RecallTally {
 public:
  // Cells are numbered by the caller: a cell is a method with an ask. Heads are query heads of all
  // layers.
  RecallTally(int64_t num_cells, int64_t num_heads);

  // One query tile of a head: the mass captured, and the share of the tiles that were taken.
  void add(int64_t cell, int64_t head, double mass, double tile_share);

  // REQUIRES of both: at least one tile was added for the head, or for every head.
  double head_mean(int64_t cell, int64_t head) const;
  RecallSummary summary(int64_t cell) const;

 private:
  struct Sums {
    double mass = 0;
    double tile_share = 0;
    int64_t count = 0;
  };
  const Sums& sums(int64_t cell, int64_t head) const;

  int64_t num_heads_;
  std::vector<Sums> sums_;  // [cell][head]
};

// Lost mass relative to that of the oracle: 1 where the oracle loses as much, 2 where half as much.
// 1 if both lose nothing.
double lost_of_oracle(const RecallSummary& method, const RecallSummary& oracle);

}  // namespace sluice::lab
