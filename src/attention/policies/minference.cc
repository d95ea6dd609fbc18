// score_line_rows, score_lines, columns, select_diagonals: a walk over the keys for each but the
// last.
#include "attention/policies/minference.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int32_t kVerticalTokens = 1024;
constexpr int32_t kSlashTokens = 6144;

}  // namespace

MInferencePolicy::MInferencePolicy(const SparseOptions& options)
    : TilePolicy("minference", options, {.choice = TileChoice::kTop}),
      lines_{.segment_tokens = segment_tokens_of(options)},
      column_rule_{.sink_tokens = tile_rule().sink_tokens, .to_segment_end = true},
      max_diagonals_(
          static_cast<int32_t>(mask_tiles_of(options.slash_tokens.value_or(kSlashTokens)))),
      columns_(lines_.segment_tokens, options.vertical_tokens.value_or(kVerticalTokens)) {}

int64_t MInferencePolicy::segments_of(int64_t num_rows) const {
  return (num_rows + lines_.segment_tokens - 1) / lines_.segment_tokens;
}

// ---- Memory ------------------------------------------------------------------------------------

size_t MInferencePolicy::record_bytes(const PolicyLimits& limits) const {
  const auto of_segment =
      static_cast<size_t>(limits.num_q_heads * lines_.count * mask_tiles_of(limits.max_tokens)) *
      sizeof(float);
  const size_t tiles_per_segment = static_cast<size_t>(lines_.segment_tokens / kMaskTileTokens);
  return std::max<size_t>(1, of_segment / tiles_per_segment);
}

MInferencePolicy::Memory MInferencePolicy::cut_memory(Arena& arena, const KvLayout& layout,
                                                      const PolicyLimits& limits) const {
  const int64_t num_segments = segments_of(max_window_rows(limits));
  const int64_t num_probes = num_segments * lines_.count;
  const int64_t num_tiles = mask_tiles_of(limits.max_tokens);
  return {.vectors =
              arena.tensor(DType::kBF16, {limits.num_q_heads, num_probes, layout.block.head_dim}),
          .records = arena.tensor(DType::kF32, {limits.num_q_heads, num_probes, num_tiles}),
          .lse = arena.tensor(DType::kF32, {limits.num_q_heads, num_probes}),
          .diagonals =
              arena.tensor(DType::kI64, {num_list_heads(layout.block), num_segments, num_tiles})};
}

PassColumns::Sizes MInferencePolicy::column_sizes(const KvLayout& layout,
                                                  const PolicyLimits& limits) const {
  return {.layout = layout,
          .limits = limits,
          .num_lists = num_list_heads(layout.block),
          .window_rows = max_window_rows(limits)};
}

PolicyMemory MInferencePolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                      const PolicyLimits& limits) const {
  PolicyMemory memory = TilePolicy::memory(layout, num_blocks, limits);
  const PolicyMemory columns = columns_.memory(column_sizes(layout, limits));
  const size_t count_bytes = ListCounts::size_bytes(layout, num_list_heads(layout.block));
  Arena plan;
  cut_memory(plan, layout, limits);
  memory.list_bytes += plan.used_bytes() + columns.list_bytes + count_bytes;
  memory.pinned_bytes += columns.pinned_bytes + count_bytes;
  return memory;
}

void MInferencePolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                                  const PolicyLimits& limits) {
  columns_.initialize(device, column_sizes(layout, limits));
  TilePolicy::initialize(device, layout, num_blocks, limits);
  num_lists_ = num_list_heads(layout.block);
  diagonal_counts_.initialize(device, layout, num_lists_, max_diagonals_);
  Arena plan;
  cut_memory(plan, layout, limits);
  device_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, layout, limits);
}

MInferencePolicy::Memory MInferencePolicy::memory_of(const SelectInput& input,
                                                     const TileRows& window) const {
  const int64_t num_segments = segments_of(window.count);
  const int64_t num_probes = num_segments * lines_.count;
  const int64_t num_tiles = mask_tiles_of(input.span.end_pos());
  const Memory& all = memory_;
  SLUICE_CHECK(num_probes <= all.records.dim(1) && num_tiles <= all.records.dim(2),
               "{} line rows, {} KV tiles", num_probes, num_tiles);
  const int64_t num_q_heads = all.vectors.dim(0);
  return {
      .vectors = TensorView(all.vectors.bytes(), DType::kBF16,
                            {num_q_heads, num_probes, all.vectors.dim(2)}),
      .records = TensorView(all.records.bytes(), DType::kF32, {num_q_heads, num_probes, num_tiles}),
      .lse = TensorView(all.lse.bytes(), DType::kF32, {num_q_heads, num_probes}),
      .diagonals =
          TensorView(all.diagonals.bytes(), DType::kI64, {num_lists_, num_segments, num_tiles})};
}

// ---- A selection -------------------------------------------------------------------------------

void MInferencePolicy::score(Stream& stream, const SelectInput& input, const TileRows& window,
                             const KeyRun& run) {
  const Memory memory = memory_of(input, window);
  if (run.walk == 0) {
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
  } else if (run.walk == 1) {
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
                         .verticals = columns_.scores_of(input, window),
                         .diagonals = memory.diagonals});
  } else {
    columns_.gather(stream, input, window, run);
  }
}

void MInferencePolicy::end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                                int32_t walk) {
  if (walk == 1) columns_.select(stream, input, window, column_rule_);
}

void MInferencePolicy::choose(Stream& stream, const SelectInput& input, const TileRows& window) {
  select_diagonals(stream, {.diagonals = memory_of(input, window).diagonals,
                            .max_count = diagonal_counts_.of(stream, input.layer),
                            .segment_tokens = lines_.segment_tokens,
                            .batch = input.batch,
                            .rows = window,
                            .prompt_end = input.span.prompt_end,
                            .rule = tile_rule(),
                            .mask = mask_of(input),
                            .counts = counts_of(stream, input.layer)});
}

Selection MInferencePolicy::select(Stream& stream, const SelectInput& input) {
  Selection selection = TilePolicy::select(stream, input);
  if (selection.mask.present()) selection.columns = columns_.columns_of(input);
  return selection;
}

}  // namespace sluice
