// Records and masses of KV tiles in double precision, written from their equations. Used by tests
// only. Thread rule: pure functions over host-readable memory.
#pragma once

#include <vector>

#include "ops/tiles/tile_selection.h"

namespace sluice::reference {

// Records R[x, J] of every query head, probe row and KV tile: [num_q_heads][num_probes][num_tiles],
// where num_tiles covers kv_end. The run begins at token 0; `records` of the call is not read.
// -inf where the probe sees nothing of the tile, or does not visit it.
std::vector<double> score_tiles(const ScoreTilesArgs& args);

// Mass A[I, J] of each KV tile for each query tile and KV head, from records of those shapes:
// [num_kv_heads][num_q_tiles][num_tiles]. A = the mean over usable probe rows and the heads of the
// group of exp(R[x, J] - L[x]), where L[x] is the log-sum-exp of R[x, J] over J. A probe row whose
// L is not finite is not usable; 0 for all tiles where none is.
struct RecordShape {
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t num_q_tiles = 0;
  int32_t probes_per_tile = 0;
  int32_t num_kv_tiles = 0;
};
std::vector<double> tile_masses(const std::vector<double>& records, const RecordShape& shape);

// The bits of a TileMask from those masses, rounded down to kMassOne and taken by the rule:
// i32 [num_kv_heads][num_q_tiles][num_words], with words for num_kv_tiles.
std::vector<int32_t> mask_words(const std::vector<double>& records, const RecordShape& shape,
                                const TileRule& rule, int32_t first_q_tile, int64_t prompt_end);

// The scores of row `position` of a query head with the keys that it sees, from token 0 on.
std::vector<double> row_scores(const ScoreTilesArgs& args, int64_t q_head, int32_t position);

// The true masses: tile_masses with every row of the call as a probe.
std::vector<double> true_tile_masses(const ScoreTilesArgs& args);

}  // namespace sluice::reference
