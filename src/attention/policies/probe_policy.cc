// score_tiles for every run of keys, then select_tiles.
#include "attention/policies/probe_policy.h"

#include "core/error.h"

namespace sluice {

ProbePolicy::ProbePolicy(std::string_view name, const SparseOptions& options,
                         const TileRule& choice, const TileProbes& probes)
    : TilePolicy(name, options, choice), probes_(probes) {}

size_t ProbePolicy::record_bytes(const PolicyLimits& limits) const {
  return static_cast<size_t>(limits.num_q_heads * probes_per_tile(probes_) *
                             mask_tiles_of(limits.max_tokens)) *
         sizeof(float);
}

ProbePolicy::Memory ProbePolicy::cut_memory(Arena& arena, const KvLayout& layout,
                                            const PolicyLimits& limits) const {
  const int64_t num_probes = mask_tiles_of(max_window_rows(limits)) * probes_per_tile(probes_);
  const int64_t width = probe_width(probes_, layout.block.head_dim);
  return {.vectors = arena.tensor(DType::kBF16, {limits.num_q_heads, num_probes, width}),
          .records = arena.tensor(
              DType::kF32, {limits.num_q_heads, num_probes, mask_tiles_of(limits.max_tokens)})};
}

PolicyMemory ProbePolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                 const PolicyLimits& limits) const {
  PolicyMemory memory = TilePolicy::memory(layout, num_blocks, limits);
  Arena plan;
  cut_memory(plan, layout, limits);
  memory.list_bytes += plan.used_bytes();
  return memory;
}

void ProbePolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                             const PolicyLimits& limits) {
  TilePolicy::initialize(device, layout, num_blocks, limits);
  Arena plan;
  cut_memory(plan, layout, limits);
  device_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, layout, limits);
}

TensorView ProbePolicy::vectors_of(const TileRows& window) const {
  const TensorView& all = memory_.vectors;
  const int64_t num_probes = int64_t{window.num_q_tiles()} * probes_per_tile(probes_);
  SLUICE_CHECK(num_probes <= all.dim(1), "{} probes", num_probes);
  return TensorView(all.bytes(), DType::kBF16, {all.dim(0), num_probes, all.dim(2)});
}

TensorView ProbePolicy::records_of(const SelectInput& input, const TileRows& window) const {
  const TensorView& all = memory_.records;
  const int64_t num_probes = int64_t{window.num_q_tiles()} * probes_per_tile(probes_);
  const int64_t num_kv_tiles = mask_tiles_of(input.span.end_pos());
  SLUICE_CHECK(num_probes <= all.dim(1) && num_kv_tiles <= all.dim(2), "{} probes, {} KV tiles",
               num_probes, num_kv_tiles);
  return TensorView(all.bytes(), DType::kF32, {all.dim(0), num_probes, num_kv_tiles});
}

void ProbePolicy::score(Stream& stream, const SelectInput& input, const TileRows& window,
                        const KeyRun& run) {
  score_tiles(stream, {.q = input.q,
                       .batch = input.batch,
                       .rows = window,
                       .scale = input.scale,
                       .kv = run.kv,
                       .kv_begin = run.kv_begin,
                       .kv_end = run.kv_end,
                       .block_table = run.block_table,
                       .probes = probes_,
                       .vectors = vectors_of(window),
                       .records = records_of(input, window)});
}

void ProbePolicy::choose(Stream& stream, const SelectInput& input, const TileRows& window) {
  select_tiles(stream, {.records = records_of(input, window),
                        .probes_per_tile = probes_per_tile(probes_),
                        .batch = input.batch,
                        .rows = window,
                        .prompt_end = input.span.prompt_end,
                        .rule = tile_rule(),
                        .mask = mask_of(input),
                        .counts = counts_of(stream, input.layer)});
}

}  // namespace sluice
