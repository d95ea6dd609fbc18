// Memory of tallies and state, and the calls of audit_mass.
#include "attention/mass_audit.h"

#include "core/error.h"

namespace sluice {

MassAudit::Memory MassAudit::cut_memory(Arena& arena, const KvLayout& layout,
                                        const PolicyLimits& limits) {
  // A pass that begins at the last tile of a group has the most groups.
  const int32_t num_groups =
      num_audit_groups(kAuditGroupTiles - 1, static_cast<int32_t>(mask_tiles_of(limits.max_rows)));
  return {.tallies = arena.tensor(
              DType::kI64, {limits.max_seqs, layout.num_layers, kAuditCounts + limits.num_q_heads}),
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
}

void MassAudit::begin_layer(Stream& stream, LayerId layer, int64_t num_seqs) {
  layer_ = layer;
  if (layer.value > 0) return;
  tallies_ = memory_.tallies.rows(0, num_seqs);
  stream.fill(tallies_.bytes(), tallies_.num_bytes(), 0);
}

void MassAudit::begin_walk(int64_t seq, const TileRows& rows) {
  seq_ = seq;
  rows_ = rows;
}

void MassAudit::visit(Stream& stream, const AttentionArgs& args) {
  if (rows_.count == 0) return;
  const auto& [mask, columns] = std::get<MaskedTiles>(args.selection);
  const int64_t num_groups =
      num_audit_groups(mask.first_q_tile + rows_.first / kMaskTileTokens, rows_.num_q_tiles());
  audit_mass(stream, {.q = args.q,
                      .batch = args.batch,
                      .rows = rows_,
                      .scale = args.scale,
                      .kv = args.kv,
                      .kv_begin = args.kv_begin,
                      .kv_end = args.kv_end,
                      .block_table = args.block_table,
                      .mask = mask,
                      .columns = columns,
                      .state = memory_.state.rows(0, num_groups),
                      .first = args.first,
                      .last = args.last,
                      .tally = tally()});
}

// That of the walk's sequence and layer.
TensorView MassAudit::tally() const {
  const int64_t num_counts = tallies_.dim(2);
  return tallies_.rows(seq_, 1)
      .reshape({num_layers_, num_counts})
      .rows(layer_.value, 1)
      .reshape({num_counts});
}

void MassAudit::end_layer(Stream& stream) {
  if (layer_.value + 1 != num_layers_) return;
  stream.copy(
      {.dst = host_tallies_.data(), .src = tallies_.bytes(), .num_bytes = tallies_.num_bytes()});
}

std::span<const int64_t> MassAudit::tallies(int64_t seq) const {
  SLUICE_CHECK(seq < tallies_.dim(0), "sequence {} of {}", seq, tallies_.dim(0));
  const auto length = static_cast<size_t>(num_layers_ * tallies_.dim(2));
  return {
      reinterpret_cast<const int64_t*>(host_tallies_.data()) + static_cast<size_t>(seq) * length,
      length};
}

}  // namespace sluice
