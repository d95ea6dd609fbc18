// sampled as probes of kind kRows; with columns the masses of tiles stand between records and mask.
#include "attention/policies/sampled.h"

#include "attention/policies/first_stage.h"
#include "core/error.h"

namespace sluice {
namespace {

constexpr double kSampledCoverage = 0.95;
constexpr int32_t kProbeRows = 4;
constexpr int32_t kColumnTokens = 128;
constexpr int32_t kSegmentTokens = 512;  // rows that share columns

constexpr int32_t kTwoStageTokens = 256 * 1024;

}  // namespace

SampledPolicy::SampledPolicy(const SparseOptions& options)
    : ProbePolicy(
          "sampled", options, coverage_choice(options, kSampledCoverage),
          {.kind = TileProbeKind::kRows,
           .rows_per_tile = power_of_two("sparse_probe_rows", options.probe_rows, kProbeRows)}),
      kept_rule_(first_stage_rule(tile_rule(), options.two_stage_tokens.value_or(kTwoStageTokens))),
      has_columns_(options.column_tokens.value_or(kColumnTokens) > 0),
      columns_(kSegmentTokens, options.column_tokens.value_or(kColumnTokens)) {}

int32_t SampledPolicy::prefill_scope_tokens() const {
  return has_columns_ ? kSegmentTokens : ProbePolicy::prefill_scope_tokens();
}

// ---- Memory ------------------------------------------------------------------------------------

TileMasses SampledPolicy::cut_masses(Arena& arena, const KvLayout& layout,
                                     const PolicyLimits& limits) const {
  const int64_t num_q_tiles = mask_tiles_of(max_window_rows(limits));
  const int64_t num_lists = num_list_heads(layout.block);
  return {
      .lse = arena.tensor(DType::kF32, {limits.num_q_heads, num_q_tiles * probes().rows_per_tile}),
      .masses =
          arena.tensor(DType::kI32, {num_lists, num_q_tiles, mask_tiles_of(limits.max_tokens)}),
      .column_mass = arena.tensor(DType::kI32, {num_lists, num_q_tiles})};
}

PolicyMemory SampledPolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                   const PolicyLimits& limits) const {
  PolicyMemory memory = ProbePolicy::memory(layout, num_blocks, limits);
  if (!has_columns_) return memory;
  const PolicyMemory columns = columns_.memory(pass_sizes(layout, limits));
  Arena plan;
  cut_masses(plan, layout, limits);
  memory.list_bytes += plan.used_bytes() + columns.list_bytes;
  memory.pinned_bytes += columns.pinned_bytes;
  return memory;
}

void SampledPolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                               const PolicyLimits& limits) {
  if (has_columns_) {
    columns_.initialize(device, pass_sizes(layout, limits));
    Arena plan;
    cut_masses(plan, layout, limits);
    device_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
    Arena arena(device_memory_.data(), device_memory_.size_bytes());
    masses_ = cut_masses(arena, layout, limits);
  }
  ProbePolicy::initialize(device, layout, num_blocks, limits);
}

TileMasses SampledPolicy::masses_of(const SelectInput& input, const TileRows& window) const {
  const int64_t num_q_tiles = window.num_q_tiles();
  const int64_t num_kv_tiles = mask_tiles_of(input.span.end_pos());
  const TileMasses& all = masses_;
  SLUICE_CHECK(num_q_tiles <= all.masses.dim(1) && num_kv_tiles <= all.masses.dim(2),
               "{} query tiles, {} KV tiles", num_q_tiles, num_kv_tiles);
  const int64_t num_lists = all.masses.dim(0);
  return {
      .lse = TensorView(all.lse.bytes(), DType::kF32,
                        {all.lse.dim(0), num_q_tiles * probes().rows_per_tile}),
      .masses = TensorView(all.masses.bytes(), DType::kI32, {num_lists, num_q_tiles, num_kv_tiles}),
      .column_mass = TensorView(all.column_mass.bytes(), DType::kI32, {num_lists, num_q_tiles})};
}

// ---- A selection -------------------------------------------------------------------------------

bool SampledPolicy::has_two_stages(const SelectInput& input, const TileRows& rows) const {
  const int64_t last_row = input.span.first_pos + rows.first + rows.count - 1;
  return last_row / kMaskTileTokens * kMaskTileTokens >= kept_rule_.threshold_tokens;
}

int32_t SampledPolicy::first_walk(const SelectInput& input) const {
  const TileRows all{0, static_cast<int32_t>(input.span.num_rows)};
  return has_two_stages(input, all) ? kPools : kRecords;
}

void SampledPolicy::score(Stream& stream, const SelectInput& input, const TileRows& window,
                          const KeyRun& run) {
  switch (run.walk) {
    case kPools:
      if (!has_two_stages(input, window)) return;
      return score_tiles(stream,
                         records().score_args(input, window, run, first_stage_probes(probes())));
    case kRecords:
      return score_rows(stream, input, window, run);
    case kColumns:
      return score_keys(stream, input, window, run);
    default:
      return columns_.gather(stream, input, window, run);
  }
}

// The entries of the mask name what the first stage kept until `choose` overwrites them.
void SampledPolicy::score_rows(Stream& stream, const SelectInput& input, const TileRows& window,
                               const KeyRun& run) {
  ScoreTilesArgs args = records().score_args(input, window, run, probes());
  if (has_two_stages(input, window)) args.visits = mask_of(input);
  score_tiles(stream, args);
}

void SampledPolicy::score_keys(Stream& stream, const SelectInput& input, const TileRows& window,
                               const KeyRun& run) {
  score_columns(stream, {.vectors = records().vectors_of(window, probes()),
                         .lse = masses_of(input, window).lse,
                         .rows_per_tile = probes().rows_per_tile,
                         .batch = input.batch,
                         .rows = window,
                         .scale = input.scale,
                         .kv = run.kv,
                         .kv_begin = run.kv_begin,
                         .kv_end = run.kv_end,
                         .block_table = run.block_table,
                         .segment_tokens = kSegmentTokens,
                         .scores = columns_.scores_of(input, window)});
}

void SampledPolicy::end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                             int32_t walk) {
  if (walk == kPools && has_two_stages(input, window)) {
    select_tiles(stream, select_args(input, window, first_stage_probes(probes()), kept_rule_));
  }
  if (!has_columns_) return;
  if (walk == kRecords) {
    tile_masses(stream, {.records = records().records_of(input, window, probes()),
                         .probes_per_tile = probes().rows_per_tile,
                         .batch = input.batch,
                         .rows = window,
                         .first_q_tile = mask_of(input).first_q_tile,
                         .out = masses_of(input, window)});
  } else if (walk == kColumns) {
    columns_.select(stream, input, window,
                    {.sink_tokens = tile_rule().sink_tokens,
                     .recent_tokens = tile_rule().recent_tokens,
                     .threshold_tokens = tile_rule().threshold_tokens});
  } else if (walk == kCopies) {
    subtract_columns(stream, {.vectors = records().vectors_of(window, probes()),
                              .rows_per_tile = probes().rows_per_tile,
                              .batch = input.batch,
                              .rows = window,
                              .scale = input.scale,
                              .columns = columns_.columns_of(input),
                              .masses = masses_of(input, window)});
  }
}

void SampledPolicy::choose(Stream& stream, const SelectInput& input, const TileRows& window) {
  if (!has_columns_) return ProbePolicy::choose(stream, input, window);
  select_tiles(stream, {.batch = input.batch,
                        .rows = window,
                        .prompt_end = input.span.prompt_end,
                        .rule = tile_rule(),
                        .mask = mask_of(input),
                        .counts = counts_of(stream, input.layer),
                        .masses = masses_of(input, window)});
}

Selection SampledPolicy::select(Stream& stream, const SelectInput& input) {
  Selection selection = ProbePolicy::select(stream, input);
  if (auto* tiles = std::get_if<MaskedTiles>(&selection); tiles != nullptr && has_columns_) {
    tiles->columns = columns_.columns_of(input);
  }
  return selection;
}

}  // namespace sluice
