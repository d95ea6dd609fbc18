// score_tiles for every run of keys, then select_tiles.
#include "attention/policies/probe_policy.h"

namespace sluice {

ProbePolicy::ProbePolicy(std::string_view name, const SparseOptions& options,
                         const TileRule& choice, const TileProbes& probes)
    : TilePolicy(name, options, choice), records_(probes) {}

size_t ProbePolicy::record_bytes(const PolicyLimits& limits) const {
  return records_.tile_bytes(limits);
}

PolicyMemory ProbePolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                 const PolicyLimits& limits) const {
  PolicyMemory memory = TilePolicy::memory(layout, num_blocks, limits);
  memory.list_bytes += records_.memory_bytes(layout, limits, max_window_rows(limits));
  return memory;
}

void ProbePolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                             const PolicyLimits& limits) {
  TilePolicy::initialize(device, layout, num_blocks, limits);
  records_.initialize(device, layout, limits, max_window_rows(limits));
}

SelectTilesArgs ProbePolicy::select_args(const SelectInput& input, const TileRows& window,
                                         const TileProbes& probes, const TileRule& rule) const {
  return {.records = records_.records_of(input, window, probes),
          .probes_per_tile = probes_per_tile(probes),
          .batch = input.batch,
          .rows = window,
          .prompt_end = input.span.prompt_end,
          .rule = rule,
          .mask = mask_of(input)};
}

void ProbePolicy::score(Stream& stream, const SelectInput& input, const TileRows& window,
                        const KeyRun& run) {
  score_tiles(stream, records_.score_args(input, window, run, probes()));
}

void ProbePolicy::choose(Stream& stream, const SelectInput& input, const TileRows& window) {
  SelectTilesArgs args = select_args(input, window, probes(), tile_rule());
  args.counts = counts_of(stream, input.layer);
  select_tiles(stream, args);
}

}  // namespace sluice
