// The one place that decides where each array of a pass lies.
#include "engine/pass_arrays.h"

namespace sluice {

PassArrays PassArrays::cut(Arena& arena, const PassLimits& limits) {
  const int64_t rows = limits.max_rows;
  const int64_t seqs = limits.max_seqs;
  PassArrays a;
  a.slot_table = arena.tensor(DType::kI32, {limits.slot_blocks});
  a.slot_begin = arena.tensor(DType::kI32, {limits.max_slotfuls});
  a.token_ids = arena.tensor(DType::kI32, {rows});
  a.positions = arena.tensor(DType::kI32, {rows});
  a.kv_slots = arena.tensor(DType::kI32, {rows});
  a.row_begin = arena.tensor(DType::kI32, {seqs + 1});
  a.first_pos = arena.tensor(DType::kI32, {seqs});
  a.kv_begin = arena.tensor(DType::kI32, {seqs});
  a.kv_end = arena.tensor(DType::kI32, {seqs});
  a.history_begin = arena.tensor(DType::kI32, {seqs});
  a.logit_rows = arena.tensor(DType::kI32, {seqs});
  a.temperature = arena.tensor(DType::kF32, {seqs});
  a.top_k = arena.tensor(DType::kI32, {seqs});
  a.top_p = arena.tensor(DType::kF32, {seqs});
  a.min_p = arena.tensor(DType::kF32, {seqs});
  a.seed = arena.tensor(DType::kI64, {seqs});
  a.sample_pos = arena.tensor(DType::kI64, {seqs});
  a.suppressed = arena.tensor(DType::kI32, {seqs, limits.max_suppressed});
  a.run_begin = arena.tensor(DType::kI32, {limits.max_history_runs});
  a.run_end = arena.tensor(DType::kI32, {limits.max_history_runs});
  a.run_places = arena.tensor(DType::kI32, {limits.max_resident_blocks});
  a.block_table = arena.tensor(DType::kI32, {seqs, limits.max_blocks_per_seq});
  a.block_ids = arena.tensor(DType::kI32, {seqs, limits.max_ids_per_seq});
  a.block_places = arena.tensor(DType::kI32, {seqs, limits.max_places_per_seq});
  return a;
}

size_t PassArrays::bytes(const PassLimits& limits) {
  Arena plan;
  cut(plan, limits);
  return plan.used_bytes();
}

}  // namespace sluice
