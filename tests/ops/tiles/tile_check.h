// What the tests of score_tiles share: running it, and how far from the reference it may be.
//
// Used by tile_selection_test and tile_kernels_test. Thread rule: host thread.
#pragma once

#include <string>

#include "ops/cpu/cpu_ops.h"
#include "ops/planted_text.h"

namespace sluice::testing {

inline std::string describe(const TileProbes& probes) {
  return fmt::format("kind {} probes {} width of a dimension {}", static_cast<int>(probes.kind),
                     probes_per_tile(probes), probe_width(probes, 1));
}

// Runs the op on the device under test, on the CPU with the kernels of `isa`.
inline void score(Machine& machine, const ScoreTilesArgs& args, CpuIsa isa = best_kernels()) {
  if (machine.on_cpu()) {
    cpu::CpuOps(isa).score_tiles(machine.stream(), args);
  } else {
    score_tiles(machine.stream(), args);
  }
  machine.synchronize();
}

// The chain of a sum of n products loses at most n units; pools are rounded to bf16 on both sides.
inline double tolerance_of(const TileProbes& probes, int32_t head_dim) {
  const auto products = static_cast<double>(probe_width(probes, head_dim));
  const double chain = 16 * (products + kMaskTileTokens) * kUnitF32;
  return probes.kind == TileProbeKind::kPooled ? chain + 16 * 2 * kUnitBF16 : chain;
}

// The records of a call that was run, against double precision.
inline void expect_records_match(const ScoreTilesArgs& args, const std::vector<double>& expected) {
  const double tolerance = tolerance_of(args.probes, static_cast<int32_t>(args.q.dim(2)));
  expect_close(args.records, expected, std::vector<double>(expected.size(), tolerance), 1e-4);
}

}  // namespace sluice::testing
