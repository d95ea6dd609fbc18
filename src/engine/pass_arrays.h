// PassArrays: the small arrays that describe one pass, on the host and on the device.
//
// engine/runner fills the pinned copy, one transfer brings it to the device, and the kernels read
// it there. The arrays of the Residency, which say where KV is (attention/residency.h), are cut
// from the same memory before these. One function cuts the arrays to the size of each pass on both
// sides: a small pass is a small transfer, offsets agree, and passes of one size have equal
// offsets, which graphs rely on. Thread rule: the engine's thread; the pinned side may be rewritten
// only after the pass is done.
#pragma once

#include <cstdint>

#include "attention/residency.h"
#include "core/arena.h"
#include "core/tensor_view.h"

namespace sluice {

// End tokens of the model and of one request together: a row of `suppressed`.
inline constexpr int32_t kMaxEndTokenIds = 64;

struct PassArrays {
  // Per row.
  TensorView token_ids;  // i32 [num_rows]
  TensorView positions;  // i32 [num_rows], absolute
  // Per sequence.
  TensorView row_begin;  // i32 [num_seqs + 1]: first row of each sequence, then num_rows
  TensorView first_pos;  // i32 [num_seqs]: position of its first row
  TensorView kv_end;     // i32 [num_seqs]: tokens of KV including this pass
  // The same, of a model with states: the slots that a pass reads and writes (DeltaRows). Else
  // absent.
  TensorView read_slots;   // i32 [num_seqs]
  TensorView write_slots;  // i32 [num_seqs]
  // Per sampled token.
  TensorView logit_rows;   // i32 [num_seqs]: row of the pass that each token is sampled from
  TensorView sample_rows;  // SampleRow [num_seqs], as u8 [num_seqs, sizeof(SampleRow)]
  TensorView suppressed;   // i32 [num_seqs, kMaxEndTokenIds]: ids with probability 0; -1: unused
  // The same in every pass.
  TensorView chunk_borders;  // i32 [num_chunk_borders]; absent without them

  // Cuts the arrays for `num_rows` rows and `num_seqs` sequences and sampled tokens. Every array
  // shrinks with both numbers, so memory planned for the largest pass holds any pass.
  // `limits` says which arrays there are.
  static PassArrays cut(Arena& arena, int64_t num_rows, int64_t num_seqs, const PassLimits& limits);
  // Bytes that `cut` takes of an arena for the largest pass, alignment included.
  static size_t bytes(const PassLimits& limits);
};

}  // namespace sluice
