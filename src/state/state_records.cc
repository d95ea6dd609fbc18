// Where records lie, and the arrays of a replay.
#include "state/state_records.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

std::vector<DeltaRecords> StateRecords::cut_layers(Arena& arena, const StateLayout& layout,
                                                   int64_t num_rows) {
  const DeltaShape& shape = layout.shape;
  std::vector<DeltaRecords> layers;
  for (int32_t i = 0; i < layout.num_layers; ++i) {
    layers.push_back(
        {.in = arena.tensor(DType::kBF16, {num_rows, shape.num_channels() + shape.v_width()}),
         .gates = arena.tensor(DType::kF32, {num_rows, 2 * int64_t{shape.num_v_heads}})});
  }
  return layers;
}

StateRecords::Arrays StateRecords::cut_arrays(Arena& arena, int64_t num_seqs) {
  return {.row_begin = arena.tensor(DType::kI32, {num_seqs + 1}),
          .first_pos = arena.tensor(DType::kI32, {num_seqs}),
          .read_slots = arena.tensor(DType::kI32, {num_seqs}),
          .write_slots = arena.tensor(DType::kI32, {num_seqs})};
}

size_t StateRecords::array_bytes(const Sizes& sizes) {
  Arena plan;
  cut_arrays(plan, max_parts(sizes));
  return plan.used_bytes();
}

size_t StateRecords::device_bytes(const StateLayout& layout, const Sizes& sizes) {
  if (!layout.present() || sizes.num_rows == 0) return 0;
  Arena plan;
  cut_layers(plan, layout, sizes.num_rows);
  return plan.used_bytes() + array_bytes(sizes);
}

size_t StateRecords::pinned_bytes(const StateLayout& layout, const Sizes& sizes) {
  return layout.present() && sizes.num_rows > 0 ? array_bytes(sizes) : 0;
}

StateRecords::StateRecords(const StateLayout& layout, const Sizes& sizes, Device& device)
    : sizes_(sizes),
      memory_(
          device.allocate(device_bytes(layout, sizes) - array_bytes(sizes), MemoryKind::kDevice)),
      host_arrays_(device.allocate(array_bytes(sizes), MemoryKind::kPinned)),
      device_arrays_(device.allocate(array_bytes(sizes), MemoryKind::kDevice)),
      copied_(device.make_event()) {
  Arena arena(memory_.data(), memory_.size_bytes());
  layers_ = cut_layers(arena, layout, sizes.num_rows);
}

// A sequence is a part, or padding up to the next one: rows of a part that were not accepted, and
// all rows of other sequences.
StateReplay StateRecords::describe(std::span<const Part> parts, Stream& stream) {
  copied_->synchronize();
  Arena host_arena(host_arrays_.data(), host_arrays_.size_bytes());
  const Arrays host = cut_arrays(host_arena, max_parts(sizes_));
  int64_t num_seqs = 0, end = 0, max_rows = 0;
  const auto add = [&](const Part& part) {
    SLUICE_CHECK(num_seqs < max_parts(sizes_), "{} sequences", num_seqs);
    host.row_begin.data<int32_t>()[num_seqs] = static_cast<int32_t>(part.first_record);
    host.first_pos.data<int32_t>()[num_seqs] = static_cast<int32_t>(part.first_pos);
    host.read_slots.data<int32_t>()[num_seqs] = part.slots.read;
    host.write_slots.data<int32_t>()[num_seqs] = part.slots.write;
    end = part.first_record + part.num_rows;
    host.row_begin.data<int32_t>()[++num_seqs] = static_cast<int32_t>(end);
  };
  for (const Part& part : parts) {
    SLUICE_CHECK(part.first_record >= end && part.num_rows > 0, "record {}", part.first_record);
    const int64_t num_others = part.first_record - end;
    if (num_others > 0) {
      add({.first_record = end, .num_rows = num_others, .slots = {.read = -1, .write = -1}});
    }
    add(part);
    max_rows = std::max(max_rows, part.num_rows);
  }
  SLUICE_CHECK(end <= sizes_.num_rows, "{} records", end);
  stream.copy({.dst = device_arrays_.data(),
               .src = host_arrays_.data(),
               .num_bytes = host_arrays_.size_bytes()});
  stream.record(*copied_);
  Arena device_arena(device_arrays_.data(), device_arrays_.size_bytes());
  const Arrays device = cut_arrays(device_arena, max_parts(sizes_));
  return {.rows = {.row_begin = device.row_begin.rows(0, num_seqs + 1),
                   .first_pos = device.first_pos.rows(0, num_seqs),
                   .read_slots = device.read_slots.rows(0, num_seqs),
                   .write_slots = device.write_slots.rows(0, num_seqs),
                   .max_rows = max_rows,
                   .has_chunks = false},
          .num_rows = end};
}

}  // namespace sluice
