// Memory of tallies and state, and the calls of audit_mass.
#include "attention/mass_audit.h"

#include <cstring>
#include <utility>

namespace sluice {

MassAudit::Memory MassAudit::cut_memory(Arena& arena, const KvLayout& layout,
                                        const PolicyLimits& limits) {
  // A pass that begins at the last tile of a group has the most groups.
  const int32_t num_groups =
      num_audit_groups(kAuditGroupTiles - 1, static_cast<int32_t>(mask_tiles_of(limits.max_rows)));
  return {
      .tallies = arena.tensor(DType::kI64, {layout.num_layers, kAuditCounts + limits.num_q_heads}),
      .state = arena.tensor(DType::kF32, {num_groups, kAuditParts, limits.num_q_heads, 4})};
}

PolicyMemory MassAudit::memory(const KvLayout& layout, const PolicyLimits& limits) const {
  Arena plan;
  const Memory memory = cut_memory(plan, layout, limits);
  return {.summary_bytes = 0,
          .list_bytes = plan.used_bytes(),
          .pinned_bytes = memory.tallies.num_bytes()};
}

void MassAudit::initialize(Device& device, const KvLayout& layout, const PolicyLimits& limits) {
  num_layers_ = layout.num_layers;
  const PolicyMemory sizes = memory(layout, limits);
  device_memory_ = device.allocate(sizes.list_bytes, MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, layout, limits);
  host_tallies_ = device.allocate(sizes.pinned_bytes, MemoryKind::kPinned);
  std::memset(host_tallies_.data(), 0, host_tallies_.size_bytes());
}

void MassAudit::begin(LayerId layer, const TileRows& rows) {
  layer_ = layer;
  rows_ = rows;
}

void MassAudit::visit(Stream& stream, const AttentionArgs& args) {
  if (rows_.count == 0) return;
  const TensorView& tallies = memory_.tallies;
  if (!std::exchange(is_zeroed_, true)) stream.fill(tallies.bytes(), tallies.num_bytes(), 0);
  const int64_t num_groups =
      num_audit_groups(args.mask.first_q_tile + rows_.first / kMaskTileTokens, rows_.num_q_tiles());
  audit_mass(stream, {.q = args.q,
                      .batch = args.batch,
                      .rows = rows_,
                      .scale = args.scale,
                      .kv = args.kv,
                      .kv_begin = args.kv_begin,
                      .kv_end = args.kv_end,
                      .block_table = args.block_table,
                      .mask = args.mask,
                      .columns = args.columns,
                      .state = memory_.state.rows(0, num_groups),
                      .first = args.first,
                      .last = args.last,
                      .tally = tallies.rows(layer_.value, 1).reshape({tallies.dim(1)})});
  has_changed_ = true;
}

void MassAudit::end_layer(Stream& stream, LayerId layer) {
  if (layer.value + 1 != num_layers_ || !std::exchange(has_changed_, false)) return;
  stream.copy({.dst = host_tallies_.data(),
               .src = memory_.tallies.bytes(),
               .num_bytes = memory_.tallies.num_bytes()});
}

std::span<const int64_t> MassAudit::tally(LayerId layer) const {
  const auto length = static_cast<size_t>(memory_.tallies.dim(1));
  return {reinterpret_cast<const int64_t*>(host_tallies_.data()) +
              static_cast<size_t>(layer.value) * length,
          length};
}

}  // namespace sluice
