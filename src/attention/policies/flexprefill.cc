// score_line_rows, score_tiles, choose_patterns, score_lines, columns, select_diagonals and
// select_tiles: a walk over the keys for the first two, one for the sums, one for the columns.
#include "attention/policies/flexprefill.h"

#include "core/error.h"

namespace sluice {
namespace {

constexpr int32_t kFlexVerticalTokens = 1024;
constexpr int32_t kMinBudgetTokens = 1024;
constexpr double kCoverage = 0.95;
constexpr double kDivergence = 0.1;
constexpr int32_t kLineRows = kMaskTileTokens;

SparseOptions with_defaults(SparseOptions options) {
  if (!options.min_budget_tokens) options.min_budget_tokens = kMinBudgetTokens;
  return options;
}

}  // namespace

FlexPrefillPolicy::FlexPrefillPolicy(const SparseOptions& options)
    : ProbePolicy("flexprefill", with_defaults(options), coverage_choice(options, kCoverage),
                  {.kind = TileProbeKind::kPooled,
                   .key_pool_tokens = kMaskTileTokens,
                   .query_pool_tokens = kMaskTileTokens}),
      divergence_(options.divergence.value_or(kDivergence)),
      lines_({.segment_tokens = segment_tokens_of(options), .count = kLineRows}),
      columns_(lines_.lines().segment_tokens,
               options.vertical_tokens.value_or(kFlexVerticalTokens)) {}

// ---- Memory ------------------------------------------------------------------------------------

size_t FlexPrefillPolicy::record_bytes(const PolicyLimits& limits) const {
  return ProbePolicy::record_bytes(limits) + lines_.record_bytes(limits);
}

FlexPrefillPolicy::Memory FlexPrefillPolicy::cut_memory(Arena& arena,
                                                        const TilePassSizes& sizes) const {
  const int64_t num_segments = lines_.segments_of(sizes.window_rows);
  const int64_t num_q_heads = sizes.limits.num_q_heads;
  return {.vectors =
              arena.tensor(DType::kBF16, {num_q_heads, num_segments, sizes.layout.block.head_dim}),
          .records = arena.tensor(
              DType::kF32, {num_q_heads, num_segments, mask_tiles_of(sizes.limits.max_tokens)}),
          .patterns = arena.tensor(DType::kI32, {num_q_heads, num_segments}),
          .totals = arena.tensor(DType::kI64, {sizes.num_lists, num_segments})};
}

PolicyMemory FlexPrefillPolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                       const PolicyLimits& limits) const {
  PolicyMemory memory = ProbePolicy::memory(layout, num_blocks, limits);
  const TilePassSizes sizes = pass_sizes(layout, limits);
  const PolicyMemory columns = columns_.memory(sizes);
  Arena plan;
  cut_memory(plan, sizes);
  memory.list_bytes += plan.used_bytes() + lines_.memory_bytes(sizes) + columns.list_bytes;
  memory.pinned_bytes += columns.pinned_bytes;
  return memory;
}

void FlexPrefillPolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                                   const PolicyLimits& limits) {
  const TilePassSizes sizes = pass_sizes(layout, limits);
  columns_.initialize(device, sizes);
  ProbePolicy::initialize(device, layout, num_blocks, limits);
  lines_.initialize(device, sizes);
  Arena plan;
  cut_memory(plan, sizes);
  device_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, sizes);
}

FlexPrefillPolicy::Memory FlexPrefillPolicy::memory_of(const SelectInput& input,
                                                       const TileRows& window) const {
  const int64_t num_segments = lines_.segments_of(window.count);
  const int64_t num_tiles = mask_tiles_of(input.span.end_pos());
  const Memory& all = memory_;
  SLUICE_CHECK(num_segments <= all.records.dim(1) && num_tiles <= all.records.dim(2),
               "{} segments, {} KV tiles", num_segments, num_tiles);
  const int64_t num_q_heads = all.vectors.dim(0);
  return {.vectors = TensorView(all.vectors.bytes(), DType::kBF16,
                                {num_q_heads, num_segments, all.vectors.dim(2)}),
          .records =
              TensorView(all.records.bytes(), DType::kF32, {num_q_heads, num_segments, num_tiles}),
          .patterns = TensorView(all.patterns.bytes(), DType::kI32, {num_q_heads, num_segments}),
          .totals = TensorView(all.totals.bytes(), DType::kI64, {all.totals.dim(0), num_segments})};
}

// ---- A selection -------------------------------------------------------------------------------

void FlexPrefillPolicy::score(Stream& stream, const SelectInput& input, const TileRows& window,
                              const KeyRun& run) {
  if (run.walk == 0) {
    lines_.score_rows(stream, input, window, run);
    score_pooled_rows(stream, input, window, run);
    ProbePolicy::score(stream, input, window, run);
  } else if (run.walk == 1) {
    const Memory memory = memory_of(input, window);
    lines_.score(stream, input, window, run,
                 {.verticals = columns_.scores_of(input, window),
                  .patterns = memory.patterns,
                  .totals = memory.totals});
  } else {
    columns_.gather(stream, input, window, run);
  }
}

void FlexPrefillPolicy::score_pooled_rows(Stream& stream, const SelectInput& input,
                                          const TileRows& window, const KeyRun& run) {
  const Memory memory = memory_of(input, window);
  score_line_rows(stream, {.q = input.q,
                           .batch = input.batch,
                           .rows = window,
                           .scale = input.scale,
                           .kv = run.kv,
                           .kv_begin = run.kv_begin,
                           .kv_end = run.kv_end,
                           .block_table = run.block_table,
                           .lines = lines_.lines(),
                           .is_pooled = true,
                           .vectors = memory.vectors,
                           .records = memory.records});
}

void FlexPrefillPolicy::end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                                 int32_t walk) {
  const Memory memory = memory_of(input, window);
  if (walk == 0) {
    choose_patterns(stream, {.records = lines_.records_of(input, window),
                             .pooled = memory.records,
                             .batch = input.batch,
                             .rows = window,
                             .lines = lines_.lines(),
                             .divergence = divergence_,
                             .patterns = memory.patterns});
  } else if (walk == 1) {
    columns_.select(stream, input, window,
                    {.sink_tokens = tile_rule().sink_tokens, .to_segment_end = true},
                    {.totals = memory.totals, .share = tile_rule().share});
  }
}

void FlexPrefillPolicy::choose(Stream& stream, const SelectInput& input, const TileRows& window) {
  const Memory memory = memory_of(input, window);
  select_diagonals(stream, {.diagonals = lines_.diagonals_of(input, window),
                            .segment_tokens = lines_.lines().segment_tokens,
                            .batch = input.batch,
                            .rows = window,
                            .prompt_end = input.span.prompt_end,
                            .rule = tile_rule(),
                            .mask = mask_of(input),
                            .counts = counts_of(stream, input.layer),
                            .patterns = memory.patterns});
  SelectTilesArgs tiles = select_args(input, window, probes(), tile_rule());
  tiles.counts = counts_of(stream, input.layer);
  tiles.patterns = memory.patterns;
  tiles.segment_tokens = lines_.lines().segment_tokens;
  select_tiles(stream, tiles);
}

Selection FlexPrefillPolicy::select(Stream& stream, const SelectInput& input) {
  Selection selection = ProbePolicy::select(stream, input);
  if (auto* tiles = std::get_if<MaskedTiles>(&selection)) {
    tiles->columns = columns_.columns_of(input);
  }
  return selection;
}

}  // namespace sluice
