// The layout of a pass's arrays; the host and the device side both use it.
#include "engine/pass_arrays.h"

#include "ops/sample.h"

namespace sluice {

PassArrays PassArrays::cut(Arena& arena, int64_t num_rows, int64_t num_seqs,
                           const PassLimits& limits) {
  PassArrays a;
  a.token_ids = arena.tensor(DType::kI32, {num_rows});
  a.positions = arena.tensor(DType::kI32, {num_rows});
  a.row_begin = arena.tensor(DType::kI32, {num_seqs + 1});
  a.first_pos = arena.tensor(DType::kI32, {num_seqs});
  a.kv_end = arena.tensor(DType::kI32, {num_seqs});
  if (limits.has_states) {
    a.read_slots = arena.tensor(DType::kI32, {num_seqs});
    a.write_slots = arena.tensor(DType::kI32, {num_seqs});
  }
  a.logit_rows = arena.tensor(DType::kI32, {num_seqs});
  a.sample_rows = arena.tensor(DType::kU8, {num_seqs, sizeof(SampleRow)});
  a.suppressed = arena.tensor(DType::kI32, {num_seqs, kMaxEndTokenIds});
  if (limits.num_chunk_borders > 0) {
    a.chunk_borders = arena.tensor(DType::kI32, {limits.num_chunk_borders});
  }
  return a;
}

size_t PassArrays::bytes(const PassLimits& limits) {
  Arena plan;
  cut(plan, limits.max_rows, limits.max_logit_rows(), limits);
  return plan.used_bytes();
}

}  // namespace sluice
