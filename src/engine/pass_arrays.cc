// The layout of a pass's arrays; the host and the device side both use it.
#include "engine/pass_arrays.h"

#include "ops/sample.h"

namespace sluice {

PassArrays PassArrays::cut(Arena& arena, int64_t num_rows, int64_t num_seqs, bool has_states) {
  PassArrays a;
  a.token_ids = arena.tensor(DType::kI32, {num_rows});
  a.positions = arena.tensor(DType::kI32, {num_rows});
  a.row_begin = arena.tensor(DType::kI32, {num_seqs + 1});
  a.first_pos = arena.tensor(DType::kI32, {num_seqs});
  a.kv_end = arena.tensor(DType::kI32, {num_seqs});
  if (has_states) {
    a.read_slots = arena.tensor(DType::kI32, {num_seqs});
    a.write_slots = arena.tensor(DType::kI32, {num_seqs});
  }
  a.logit_rows = arena.tensor(DType::kI32, {num_seqs});
  a.sample_rows = arena.tensor(DType::kU8, {num_seqs, sizeof(SampleRow)});
  a.suppressed = arena.tensor(DType::kI32, {num_seqs, kMaxEndTokenIds});
  return a;
}

size_t PassArrays::bytes(int64_t num_rows, int64_t num_seqs, bool has_states) {
  Arena plan;
  cut(plan, num_rows, num_seqs, has_states);
  return plan.used_bytes();
}

}  // namespace sluice
