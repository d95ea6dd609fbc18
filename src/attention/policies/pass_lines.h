// PassLines: the line rows of a window, their records, and the sums along tile diagonals.
//
// Used by the policies that score verticals and slashes by the last rows of each segment
// (ops/tiles/tile_lines.h). Sums of verticals lie where columns are chosen (pass_columns.h). Thread
// rule: as Policy.
#pragma once

#include "attention/policies/pass_columns.h"
#include "core/arena.h"
#include "device/device.h"
#include "ops/tiles/tile_lines.h"

namespace sluice {

class PassLines {
 public:
  explicit PassLines(const LineRows& lines) : lines_(lines) {}

  const LineRows& lines() const { return lines_; }
  int64_t segments_of(int64_t num_rows) const;

  // Bytes of the records of one query tile: its part of those of a segment (TilePolicy).
  size_t record_bytes(const PolicyLimits& limits) const;
  size_t memory_bytes(const TilePassSizes& sizes) const;
  void initialize(Device& device, const TilePassSizes& sizes);

  // First walk over the keys: records of the line rows. Where queries differ by zones of keys, the
  // rows of each zone are kept for the second walk.
  void score_rows(Stream& stream, const SelectInput& input, const TileRows& window,
                  const KeyRun& run);
  // Second walk: sums of probabilities. The last two may be absent (ScoreLinesArgs).
  struct Sums {
    TensorView verticals;
    TensorView patterns;
    TensorView totals;
  };
  void score(Stream& stream, const SelectInput& input, const TileRows& window, const KeyRun& run,
             const Sums& sums);

  // Those of a window: f32 [num_q_heads, line rows, KV tiles of the sequence], and i64 [num_lists,
  // segments, KV tiles of the sequence].
  TensorView records_of(const SelectInput& input, const TileRows& window) const;
  TensorView diagonals_of(const SelectInput& input, const TileRows& window) const;

 private:
  struct Memory {
    TensorView vectors;  // bf16 [zones of keys, num_q_heads, line rows, head_dim]
    TensorView records;
    TensorView lse;  // f32 [num_q_heads, line rows]
    TensorView diagonals;
  };
  Memory cut_memory(Arena& arena, const TilePassSizes& sizes) const;
  // `memory_` packed to a window; vectors are those of a zone.
  Memory memory_of(const SelectInput& input, const TileRows& window, int32_t zone = 0) const;

  LineRows lines_;

  // From `initialize` on.
  Buffer device_memory_;
  Memory memory_;
};

}  // namespace sluice
