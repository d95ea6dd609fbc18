// Softmax mass of single keys in double precision, from its equation. Used by tests only.
// Thread rule: pure functions over host-readable memory.
#pragma once

#include <vector>

#include "ops/tiles/tile_columns.h"

namespace sluice::reference {

// P[x, j] of a true row of a query head: exp(score(x, j) - ln sum over keys of exp(score)), for the
// keys 0 to x, [x + 1] numbers. The run of `args` holds all keys from 0 on. With visits the sum is
// over keys of visited tiles, so that P of others can exceed 1.
std::vector<double> probabilities(const ScoreTilesArgs& args, int32_t q_head, int32_t position);

// Scores of positions, [num_lists][num_segments][kv_end], in units of whole rows: the sum of P, at
// most 1 each, over the column_probe of each query tile of the segment and the heads of the list.
// `args` are those of score_tiles (kRows) over all rows.
std::vector<double> column_scores(const ScoreTilesArgs& args, int32_t segment_tokens,
                                  int32_t num_lists);

// Of each position j < kv_end, the mean over a query tile's probes x and the heads of the list of
// P[x, j]; P is 0 for probes before j.
std::vector<double> column_masses(const ScoreTilesArgs& args, int32_t num_lists, int32_t list,
                                  int32_t q_tile);

// What score_lines sums, in units of whole rows: verticals [num_lists][num_segments][kv_end] and
// diagonals [num_lists][num_segments][num_kv_tiles], from the probabilities of the last `num_rows`
// rows of each segment.
struct LineScores {
  std::vector<double> verticals;
  std::vector<double> diagonals;
};
LineScores line_scores(const ScoreTilesArgs& args, int32_t segment_tokens, int32_t num_rows,
                       int32_t num_lists);

}  // namespace sluice::reference
