// How far pools of a segment's line rows are from their true attention, in double precision, from
// the equations. Used by tests only. Thread rule: pure functions over host-readable memory.
#pragma once

#include <span>
#include <vector>

#include "ops/tiles/tile_selection.h"

namespace sluice::reference {

// The records of score_line_rows, is_pooled: [num_q_heads][num_segments][num_kv_tiles], for the
// mean of the last `num_rows` rows of each segment. `args` as for line_scores.
std::vector<double> pooled_line_records(const ScoreTilesArgs& args, int32_t segment_tokens,
                                        int32_t num_rows);

// sqrt(JS(a, b)), natural log, 0 ln 0 = 0.
double divergence(std::span<const double> a, std::span<const double> b);

// That distance between the true masses of KV tiles, the mean over these rows, and the softmax of
// their pooled records: [num_q_heads][num_segments].
std::vector<double> line_divergences(const ScoreTilesArgs& args, int32_t segment_tokens,
                                     int32_t num_rows);

}  // namespace sluice::reference
