// PassArrays: the small integer arrays that describe one pass, on the host and on the device.
//
// engine/runner fills the pinned copy, one transfer brings all of it to the device, and the kernels
// read it there. Where KV is, the arrays of the Residency say (attention/residency.h), which are
// cut from the same memory before these. The arrays are cut to the size of each pass, by the same
// function on both sides: a small pass is a small transfer, an offset can never disagree, and
// passes of one size have their arrays in the same offsets (which graphs rely on). Thread rule: the
// engine's thread; the pinned side may be rewritten only after the pass is done.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "core/tensor_view.h"

namespace sluice {

inline constexpr int32_t kMaxEndTokenIds = 64;  // of the model and of a request, together

struct PassArrays {
  // Per row.
  TensorView token_ids;  // i32 [num_rows]
  TensorView positions;  // i32 [num_rows]
  // Per sequence.
  TensorView row_begin;  // i32 [num_seqs + 1]
  TensorView first_pos;  // i32 [num_seqs]
  TensorView kv_end;     // i32 [num_seqs]
  // Per sampled token.
  TensorView logit_rows;   // i32 [num_seqs]
  TensorView temperature;  // f32 [num_seqs]
  TensorView top_k;        // i32 [num_seqs]
  TensorView top_p;        // f32 [num_seqs]
  TensorView min_p;        // f32 [num_seqs]
  TensorView seed;         // i64 [num_seqs]
  TensorView sample_pos;   // i64 [num_seqs]
  TensorView suppressed;   // i32 [num_seqs, kMaxEndTokenIds]: must not be sampled yet

  // `num_seqs` sequences and rows whose logits are wanted. No array is larger for smaller numbers,
  // so what is planned for the largest pass holds all.
  static PassArrays cut(Arena& arena, int64_t num_rows, int64_t num_seqs);
  static size_t bytes(int64_t num_rows, int64_t num_seqs);
};

}  // namespace sluice
