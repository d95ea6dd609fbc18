// select_tiles over pools, as avgpool has it by default, and add_tiles.
#include "attention/policies/mixed_heads.h"

#include <algorithm>

#include "core/error.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {
namespace {

constexpr int32_t kTopTiles = 50;  // of a head that is kBlockSparse
constexpr int32_t kNumbersPerList = 3;

bool has_other_heads(const HeadGroup& group) { return group.has_tiles || group.recent_tokens >= 0; }

}  // namespace

MixedHeads::MixedHeads(const HeadProfile& profile)
    : profile_(profile),
      records_({.kind = TileProbeKind::kPooled}),
      any_tiles_(profile.has(HeadKind::kBlockSparse)) {}

// ---- Memory ------------------------------------------------------------------------------------

size_t MixedHeads::record_bytes(const PolicyLimits& limits) const {
  return any_tiles_ ? records_.tile_bytes(limits) : 0;
}

MixedHeads::Memory MixedHeads::cut_memory(Arena& arena, const TilePassSizes& sizes) const {
  if (!any_tiles_) return {};
  return {.words = arena.tensor(DType::kI32, {num_mask_words(sizes.num_lists, sizes.limits)}),
          .counts = arena.tensor(DType::kI64, {3})};
}

PolicyMemory MixedHeads::memory(const TilePassSizes& sizes) const {
  const size_t number_bytes =
      ListCounts::size_bytes(sizes.layout, sizes.num_lists * kNumbersPerList);
  PolicyMemory memory{.summary_bytes = 0, .list_bytes = number_bytes, .pinned_bytes = number_bytes};
  if (!any_tiles_) return memory;
  Arena plan;
  cut_memory(plan, sizes);
  memory.list_bytes +=
      plan.used_bytes() + records_.memory_bytes(sizes.layout, sizes.limits, sizes.window_rows);
  return memory;
}

void MixedHeads::initialize(Device& device, const TilePassSizes& sizes) {
  num_lists_ = sizes.num_lists;
  num_heads_ = sizes.limits.num_q_heads;
  first_head_ = sizes.limits.share.rank * num_heads_;
  const int64_t heads_per_list = num_heads_ / num_lists_;
  added_.initialize(device, sizes.layout, num_lists_ * kNumbersPerList, 0);
  for (int32_t layer = 0; layer < sizes.layout.num_layers; ++layer) {
    std::vector<HeadGroup>& groups = groups_.emplace_back();
    for (int64_t list = 0; list < num_lists_; ++list) {
      const HeadGroup& group = groups.emplace_back(
          profile_.group(layer, first_head_ + list * heads_per_list, heads_per_list));
      const int64_t first = list * kNumbersPerList;
      added_.set(LayerId(layer), first, group.sink_tokens);
      added_.set(LayerId(layer), first + 1, group.recent_tokens);
      added_.set(LayerId(layer), first + 2, group.has_tiles ? 1 : 0);
    }
  }
  if (!any_tiles_) return;
  records_.initialize(device, sizes.layout, sizes.limits, sizes.window_rows);
  Arena plan;
  cut_memory(plan, sizes);
  device_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, sizes);
}

// ---- A selection -------------------------------------------------------------------------------

bool MixedHeads::has_tiles(LayerId layer) const {
  return std::ranges::any_of(groups_[static_cast<size_t>(layer.value)], &HeadGroup::has_tiles);
}

void MixedHeads::score(Stream& stream, const SelectInput& input, const TileRows& window,
                       const KeyRun& run) {
  if (!has_tiles(input.layer)) return;
  score_tiles(stream, records_.score_args(input, window, run, records_.probes()));
}

// Records that are NaN make a probe unusable.
void MixedHeads::leave_out(Stream& stream, LayerId layer, HeadKind but,
                           const TensorView& records) const {
  const std::vector<HeadGroup>& groups = groups_[static_cast<size_t>(layer.value)];
  const int64_t heads_per_list = num_heads_ / num_lists_;
  for (int64_t head = 0; head < num_heads_; ++head) {
    const HeadGroup& group = groups[static_cast<size_t>(head / heads_per_list)];
    const bool is_needed = but == HeadKind::kVerticalSlash ? group.has_lines : group.has_tiles;
    if (!is_needed || profile_.at(layer.value, first_head_ + head).kind == but) continue;
    const TensorView of_head = records.rows(head, 1);
    stream.fill(of_head.bytes(), of_head.num_bytes(), 0xff);
  }
}

void MixedHeads::leave_out_of_lines(Stream& stream, LayerId layer,
                                    const TensorView& records) const {
  leave_out(stream, layer, HeadKind::kVerticalSlash, records);
}

void MixedHeads::add(Stream& stream, const SelectInput& input, const TileRows& window,
                     const Target& target) {
  const std::vector<HeadGroup>& groups = groups_[static_cast<size_t>(input.layer.value)];
  if (std::ranges::none_of(groups, has_other_heads)) return;
  TileMask tiles;
  if (has_tiles(input.layer)) {
    const TensorView records = records_.records_of(input, window, records_.probes());
    leave_out(stream, input.layer, HeadKind::kBlockSparse, records);
    tiles = make_mask(memory_.words, num_lists_, input.span);
    TileRule rule = target.rule;
    rule.top_tiles = kTopTiles;
    select_tiles(stream, {.records = records,
                          .probes_per_tile = probes_per_tile(records_.probes()),
                          .batch = input.batch,
                          .rows = window,
                          .prompt_end = input.span.prompt_end,
                          .rule = rule,
                          .mask = tiles,
                          .counts = memory_.counts});
  }
  add_tiles(stream, {.lists = added_.of(stream, input.layer).reshape({num_lists_, kNumbersPerList}),
                     .other = tiles,
                     .batch = input.batch,
                     .rows = window,
                     .mask = target.mask,
                     .counts = target.counts});
}

}  // namespace sluice
