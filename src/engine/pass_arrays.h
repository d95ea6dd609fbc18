// PassArrays: the small integer arrays that describe one pass, on the host and on the device.
//
// engine/runner fills the pinned copy, one transfer brings all of it to the device, and the kernels
// read it there. The arrays are cut to the size of each pass, by the same function on both sides: a
// small pass is a small transfer, an offset can never disagree, and passes of one size have their
// arrays in the same places (which graphs rely on).
// Thread rule: the engine's thread; the pinned side may be rewritten only after the pass is done.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "core/tensor_view.h"

namespace sluice {

// What must fit: of the largest pass in a plan, of the pass itself when arrays are cut for it.
struct PassLimits {
  int64_t max_rows = 0;  // token rows
  int64_t max_seqs = 0;  // sequences, and rows whose logits are wanted
  int64_t max_blocks_per_seq = 0;
  int64_t max_suppressed = 0;  // token ids per sequence that must not be sampled yet
  // Offloaded KV only, else 0.
  int64_t max_history_runs = 0;     // that one layer of a pass may walk
  int64_t max_resident_blocks = 0;  // in them
  int64_t slot_blocks = 0;
  int64_t max_slotfuls = 0;        // of one sequence; the same for every pass
  int64_t max_ids_per_seq = 0;     // where the policy wants block ids; else 0
  int64_t max_places_per_seq = 0;  // where blocks may be resident; else 0
};

struct PassArrays {
  // First, so that they lie at the same place in every pass: they are written once.
  TensorView slot_table;  // i32 [slot_blocks]: 0, 1, 2, ...
  TensorView slot_begin;  // i32 [max_slotfuls]: 0, the tokens of a slot, of two, ...
  // Per row.
  TensorView token_ids;  // i32 [max_rows]
  TensorView positions;  // i32 [max_rows]
  TensorView kv_slots;   // i32 [max_rows]
  // Per sequence.
  TensorView row_begin;      // i32 [max_seqs + 1]
  TensorView first_pos;      // i32 [max_seqs]
  TensorView kv_begin;       // i32 [max_seqs]
  TensorView kv_end;         // i32 [max_seqs]
  TensorView history_begin;  // i32 [max_seqs]: 0
  // Per sampled token.
  TensorView logit_rows;   // i32 [max_seqs]
  TensorView temperature;  // f32 [max_seqs]
  TensorView top_k;        // i32 [max_seqs]
  TensorView top_p;        // f32 [max_seqs]
  TensorView min_p;        // f32 [max_seqs]
  TensorView seed;         // i64 [max_seqs]
  TensorView sample_pos;   // i64 [max_seqs]
  TensorView suppressed;   // i32 [max_seqs, max_suppressed]
  // Per run of history.
  TensorView run_begin;     // i32 [max_history_runs]
  TensorView run_end;       // i32 [max_history_runs]
  TensorView run_places;    // i32 [max_resident_blocks]: those of all resident runs
  TensorView block_table;   // i32 [max_seqs, max_blocks_per_seq]
  TensorView block_ids;     // i32 [max_seqs, max_ids_per_seq]: of all blocks, from position 0 on
  TensorView block_places;  // i32 [max_seqs, max_places_per_seq]: of these, where on the device

  // No array is larger for smaller limits, so what is planned for the largest pass holds all.
  static PassArrays cut(Arena& arena, const PassLimits& limits);
  static size_t bytes(const PassLimits& limits);
};

}  // namespace sluice
