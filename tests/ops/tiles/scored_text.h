// Records, masses and scores of columns of a planted text, for the tests of columns.
//
// Thread rule: host thread.
#pragma once

#include "ops/cpu/cpu_ops.h"
#include "ops/ops.h"
#include "ops/planted_text.h"
#include "ops/tiles/tile_columns.h"

namespace sluice::testing {

inline constexpr int32_t kTile = kMaskTileTokens;
inline constexpr int32_t kSegment = 2 * kTile;
inline constexpr int32_t kFirst = kSegment;  // of the rows

// Records, masses and scores of columns of a text, for the rows from kFirst on.
struct Scored {
  ScoreTilesArgs tiles;
  TileMasses masses;
  TensorView scores;
};

inline int64_t tiles_of(int64_t tokens) { return (tokens + kTile - 1) / kTile; }

inline ScoreColumnsArgs score_args(const ScoreTilesArgs& tiles, const TileMasses& masses,
                                   const TensorView& scores) {
  return {.vectors = tiles.vectors,
          .lse = masses.lse,
          .rows_per_tile = tiles.probes.rows_per_tile,
          .batch = tiles.batch,
          .rows = tiles.rows,
          .scale = tiles.scale,
          .kv = tiles.kv,
          .kv_begin = tiles.kv_begin,
          .kv_end = tiles.kv_end,
          .block_table = tiles.block_table,
          .segment_tokens = kSegment,
          .scores = scores};
}

inline TileMasses new_masses(Machine& machine, const ScoreTilesArgs& tiles, int64_t num_lists) {
  const int64_t num_q_tiles = tiles.rows.num_q_tiles();
  return {.lse = machine.tensor(DType::kF32, {tiles.q.dim(1), tiles.records.dim(1)}),
          .masses = machine.tensor(DType::kI32, {num_lists, num_q_tiles, tiles.records.dim(2)}),
          .column_mass = machine.tensor(DType::kI32, {num_lists, num_q_tiles})};
}

inline void make_masses(Machine& machine, const ScoreTilesArgs& tiles, const TileMasses& masses) {
  tile_masses(machine.stream(), {.records = tiles.records,
                                 .probes_per_tile = tiles.probes.rows_per_tile,
                                 .batch = tiles.batch,
                                 .rows = tiles.rows,
                                 .first_q_tile = kFirst / kTile,
                                 .out = masses});
}

// The ops of the device under test, on the CPU with the kernels of `isa`. Contracts are not
// checked.
class OpsUnderTest {
 public:
  OpsUnderTest(Machine& machine, CpuIsa isa)
      : cpu_(isa), ops_(machine.on_cpu() ? &cpu_ : &ops_of(machine.device())) {}

  const Ops* operator->() const { return ops_; }

 private:
  cpu::CpuOps cpu_;
  const Ops* ops_;
};

inline Scored score(Machine& machine, const PlantedText& text, int64_t num_lists,
                    CpuIsa isa = best_kernels()) {
  Scored scored{.tiles = text.call(machine, {.rows_per_tile = 4}, kFirst)};
  const OpsUnderTest ops(machine, isa);
  ops->score_tiles(machine.stream(), scored.tiles);
  scored.masses = new_masses(machine, scored.tiles, num_lists);
  make_masses(machine, scored.tiles, scored.masses);
  const int64_t num_segments = (text.num_tokens() - kFirst + kSegment - 1) / kSegment;
  scored.scores =
      machine.tensor(DType::kI32, {num_lists, num_segments, tiles_of(text.num_tokens()) * kTile});
  ops->score_columns(machine.stream(), score_args(scored.tiles, scored.masses, scored.scores));
  machine.synchronize();
  return scored;
}

// Columns of segments, at most kTile each, without keys and values.
inline TileColumns new_columns(Machine& machine, int64_t num_lists, int32_t first_segment,
                               int64_t num_segments) {
  return {.positions = machine.tensor(DType::kI32, {num_lists, num_segments, kTile}),
          .count = machine.tensor(DType::kI32, {num_lists, num_segments}),
          .segment_tokens = kSegment,
          .first_segment = first_segment};
}

}  // namespace sluice::testing
