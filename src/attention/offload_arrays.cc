// The layout of the arrays and the contents that do not depend on the sequences.
#include "attention/offload_arrays.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace sluice {
namespace {

// All elements of an array on the host.
std::span<int32_t> elements(const TensorView& view) {
  return {view.data<int32_t>(), static_cast<size_t>(view.num_elements())};
}

}  // namespace

OffloadArrays OffloadArrays::cut(Arena& arena, const Sizes& sizes) {
  const int64_t seqs = sizes.num_seqs;
  OffloadArrays a;
  a.slot_table = arena.tensor(DType::kI32, {sizes.slot_blocks});
  a.slot_begin = arena.tensor(DType::kI32, {sizes.num_slotfuls});
  a.kv_rows = arena.tensor(DType::kI32, {sizes.num_rows});
  a.kv_begin = arena.tensor(DType::kI32, {seqs});
  a.history_begin = arena.tensor(DType::kI32, {seqs});
  a.run_begin = arena.tensor(DType::kI32, {sizes.num_runs});
  a.run_end = arena.tensor(DType::kI32, {sizes.num_runs});
  a.run_places = arena.tensor(DType::kI32, {sizes.resident_blocks});
  a.block_table = arena.tensor(DType::kI32, {seqs, sizes.own_blocks});
  a.block_ids = arena.tensor(DType::kI32, {seqs, sizes.ids_per_seq});
  a.block_places = arena.tensor(DType::kI32, {seqs, sizes.places_per_seq});
  return a;
}

size_t OffloadArrays::bytes(const Sizes& sizes) {
  Arena plan;
  cut(plan, sizes);
  return plan.used_bytes();
}

void OffloadArrays::write_constants(int32_t slot_tokens) const {
  const std::span<int32_t> table = elements(slot_table), begin = elements(slot_begin);
  std::iota(table.begin(), table.end(), 0);
  for (size_t i = 0; i < begin.size(); ++i) begin[i] = static_cast<int32_t>(i) * slot_tokens;
  std::ranges::fill(elements(history_begin), 0);
}

void OffloadArrays::write_padding(int64_t num_rows, int64_t num_seqs) const {
  std::ranges::fill(elements(kv_rows).subspan(static_cast<size_t>(num_rows)), -1);
  std::ranges::fill(elements(kv_begin).subspan(static_cast<size_t>(num_seqs)), 0);
  for (const TensorView& table : {block_table, block_ids, block_places}) {
    std::ranges::fill(elements(table).subspan(static_cast<size_t>(num_seqs * table.dim(1))), -1);
  }
}

}  // namespace sluice
