// RecallColumnOps: the engine's ops for columns and lines, on rows that the caller has laid out.
//
// Used by RecallRig on the CPU device, whose memory the host reads. A call's rows are one segment,
// as far as the text has it, and lie in one window; keys are one run. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "device/device.h"
#include "ops/tiles/tile_columns.h"
#include "ops/tiles/tile_lines.h"

namespace sluice::lab {

// The first elements of a view as a shape of their own: room is made for the largest call.
TensorView part_of(const TensorView& room, std::initializer_list<int64_t> dims);

class RecallColumnOps {
 public:
  // Room for texts of this many tokens. Errors: kDoesNotFit.
  RecallColumnOps(Device& device, int64_t num_tokens, int32_t num_q_heads,
                  const KvBlockShape& block);

  // Columns by one probe row of each query tile, as `sampled` chooses them. `rows`: of score_tiles
  // with kRows, which was called.
  void score_rows(Stream& stream, const ScoreTilesArgs& rows, int32_t segment_tokens);
  // Columns by the segment's last rows, and tile diagonals, as in `minference`. The
  // vectors and records of `rows` are room for those of the line rows, its probes are not read.
  void score_verticals(Stream& stream, const ScoreTilesArgs& rows, int32_t segment_tokens);

  // Chooses and copies the columns that fill this many tiles, by the scores of either.
  TileColumns take(Stream& stream, const ScoreTilesArgs& rows, const ColumnRule& rule,
                   int32_t column_tiles);
  // The masses of tiles less what the columns hold. REQUIRES: score_rows and take.
  TileMasses masses_beside(Stream& stream, const ScoreTilesArgs& rows, const TileColumns& columns);
  // Sets the tiles of the diagonals with the largest sums: 0, 1, the tiles that the rule forces,
  // and rule.top_tiles others. REQUIRES: score_verticals.
  void select_diagonals_into(Stream& stream, const TileMask& mask, const ScoreTilesArgs& rows,
                             const TileRule& rule, int64_t prompt_end);

 private:
  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims);
  TensorView scores_of(const ScoreTilesArgs& rows) const;
  TensorView diagonals_of(const ScoreTilesArgs& rows) const;
  TileMasses masses_of(const ScoreTilesArgs& rows) const;
  void write_masses(Stream& stream, const ScoreTilesArgs& rows);

  int64_t num_kv_heads_;
  int32_t segment_tokens_ = 0;  // of the last scores
  Device& device_;
  std::vector<Buffer> buffers_;
  // Packed to each call, but max_count_: i32 [num_kv_heads].
  TensorView lse_, masses_, column_mass_, scores_, diagonals_, counts_, max_count_;
  TileColumns columns_;
};

}  // namespace sluice::lab
