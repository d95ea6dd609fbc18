// Sizes by the largest window.
#include "attention/policies/probe_records.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

size_t ProbeRecords::tile_bytes(const PolicyLimits& limits) const {
  return static_cast<size_t>(limits.num_q_heads * probes_per_tile(probes_) *
                             mask_tiles_of(limits.max_tokens)) *
         sizeof(float);
}

// A window of a whole scope may be longer than any pass.
ProbeRecords::Memory ProbeRecords::cut_memory(Arena& arena, const KvLayout& layout,
                                              const PolicyLimits& limits,
                                              int64_t window_rows) const {
  const int64_t num_q_tiles = mask_tiles_of(std::min(window_rows, limits.max_rows));
  const int64_t num_probes = num_q_tiles * probes_per_tile(probes_);
  const int64_t width = probe_width(probes_, layout.block.head_dim);
  return {.vectors = arena.tensor(DType::kBF16, {limits.num_q_heads, num_probes, width}),
          .records = arena.tensor(
              DType::kF32, {limits.num_q_heads, num_probes, mask_tiles_of(limits.max_tokens)})};
}

size_t ProbeRecords::memory_bytes(const KvLayout& layout, const PolicyLimits& limits,
                                  int64_t window_rows) const {
  Arena plan;
  cut_memory(plan, layout, limits, window_rows);
  return plan.used_bytes();
}

void ProbeRecords::initialize(Device& device, const KvLayout& layout, const PolicyLimits& limits,
                              int64_t window_rows) {
  device_memory_ = device.allocate(memory_bytes(layout, limits, window_rows), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, layout, limits, window_rows);
}

TensorView ProbeRecords::vectors_of(const TileRows& window, const TileProbes& probes) const {
  const TensorView& all = memory_.vectors;
  const int64_t num_probes = int64_t{window.num_q_tiles()} * probes_per_tile(probes);
  const int64_t width = probe_width(probes, all.dim(2) / probe_width(probes_, 1));
  SLUICE_CHECK(num_probes <= all.dim(1) && width <= all.dim(2), "{} probes of {}", num_probes,
               width);
  return TensorView(all.bytes(), DType::kBF16, {all.dim(0), num_probes, width});
}

TensorView ProbeRecords::records_of(const SelectInput& input, const TileRows& window,
                                    const TileProbes& probes) const {
  const TensorView& all = memory_.records;
  const int64_t num_probes = int64_t{window.num_q_tiles()} * probes_per_tile(probes);
  const int64_t num_kv_tiles = mask_tiles_of(input.span.end_pos());
  SLUICE_CHECK(num_probes <= all.dim(1) && num_kv_tiles <= all.dim(2), "{} probes, {} KV tiles",
               num_probes, num_kv_tiles);
  return TensorView(all.bytes(), DType::kF32, {all.dim(0), num_probes, num_kv_tiles});
}

ScoreTilesArgs ProbeRecords::score_args(const SelectInput& input, const TileRows& window,
                                        const KeyRun& run, const TileProbes& probes) const {
  return {.q = input.q,
          .batch = input.batch,
          .rows = window,
          .scale = input.scale,
          .kv = run.kv,
          .kv_begin = run.kv_begin,
          .kv_end = run.kv_end,
          .block_table = run.block_table,
          .probes = probes,
          .vectors = vectors_of(window, probes),
          .records = records_of(input, window, probes)};
}

}  // namespace sluice
