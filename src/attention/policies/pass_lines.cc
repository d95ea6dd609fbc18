// Sizes of records and sums, and the calls of score_line_rows and score_lines.
#include "attention/policies/pass_lines.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

int64_t PassLines::segments_of(int64_t num_rows) const {
  return (num_rows + lines_.segment_tokens - 1) / lines_.segment_tokens;
}

size_t PassLines::record_bytes(const PolicyLimits& limits) const {
  const auto of_segment =
      static_cast<size_t>(limits.num_q_heads * lines_.count * mask_tiles_of(limits.max_tokens)) *
      sizeof(float);
  const size_t tiles_per_segment = static_cast<size_t>(lines_.segment_tokens / kMaskTileTokens);
  return std::max<size_t>(1, of_segment / tiles_per_segment);
}

PassLines::Memory PassLines::cut_memory(Arena& arena, const TilePassSizes& sizes) const {
  const int64_t num_segments = segments_of(sizes.window_rows);
  const int64_t num_probes = num_segments * lines_.count;
  const int64_t num_q_heads = sizes.limits.num_q_heads;
  const int64_t num_tiles = mask_tiles_of(sizes.limits.max_tokens);
  const int64_t num_zones = sizes.limits.has_zones ? kNumKeyZones : 1;
  return {.vectors = arena.tensor(
              DType::kBF16, {num_zones, num_q_heads, num_probes, sizes.layout.block.head_dim}),
          .records = arena.tensor(DType::kF32, {num_q_heads, num_probes, num_tiles}),
          .lse = arena.tensor(DType::kF32, {num_q_heads, num_probes}),
          .diagonals = arena.tensor(DType::kI64, {sizes.num_lists, num_segments, num_tiles})};
}

size_t PassLines::memory_bytes(const TilePassSizes& sizes) const {
  Arena plan;
  cut_memory(plan, sizes);
  return plan.used_bytes();
}

void PassLines::initialize(Device& device, const TilePassSizes& sizes) {
  device_memory_ = device.allocate(memory_bytes(sizes), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, sizes);
}

PassLines::Memory PassLines::memory_of(const SelectInput& input, const TileRows& window,
                                       int32_t zone) const {
  const int64_t num_segments = segments_of(window.count);
  const int64_t num_probes = num_segments * lines_.count;
  const int64_t num_tiles = mask_tiles_of(input.span.end_pos());
  const Memory& all = memory_;
  SLUICE_CHECK(num_probes <= all.records.dim(1) && num_tiles <= all.records.dim(2),
               "{} line rows, {} KV tiles", num_probes, num_tiles);
  const int64_t num_q_heads = all.records.dim(0);
  return {
      .vectors = TensorView(all.vectors.rows(zone, 1).bytes(), DType::kBF16,
                            {num_q_heads, num_probes, all.vectors.dim(3)}),
      .records = TensorView(all.records.bytes(), DType::kF32, {num_q_heads, num_probes, num_tiles}),
      .lse = TensorView(all.lse.bytes(), DType::kF32, {num_q_heads, num_probes}),
      .diagonals = TensorView(all.diagonals.bytes(), DType::kI64,
                              {all.diagonals.dim(0), num_segments, num_tiles})};
}

TensorView PassLines::records_of(const SelectInput& input, const TileRows& window) const {
  return memory_of(input, window).records;
}

TensorView PassLines::diagonals_of(const SelectInput& input, const TileRows& window) const {
  return memory_of(input, window).diagonals;
}

void PassLines::score_rows(Stream& stream, const SelectInput& input, const TileRows& window,
                           const KeyRun& run) {
  const Memory memory = memory_of(input, window, run.zone);
  score_line_rows(stream, {.q = input.q,
                           .batch = input.batch,
                           .rows = window,
                           .scale = input.scale,
                           .kv = run.kv,
                           .kv_begin = run.kv_begin,
                           .kv_end = run.kv_end,
                           .block_table = run.block_table,
                           .lines = lines_,
                           .vectors = memory.vectors,
                           .records = memory.records});
}

void PassLines::score(Stream& stream, const SelectInput& input, const TileRows& window,
                      const KeyRun& run, const Sums& sums) {
  const Memory memory = memory_of(input, window, run.zone);
  score_lines(stream, {.vectors = memory.vectors,
                       .records = memory.records,
                       .lse = memory.lse,
                       .batch = input.batch,
                       .rows = window,
                       .scale = input.scale,
                       .kv = run.kv,
                       .kv_begin = run.kv_begin,
                       .kv_end = run.kv_end,
                       .block_table = run.block_table,
                       .lines = lines_,
                       .verticals = sums.verticals,
                       .diagonals = memory.diagonals,
                       .patterns = sums.patterns,
                       .totals = sums.totals});
}

}  // namespace sluice
