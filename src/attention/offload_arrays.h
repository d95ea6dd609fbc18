// OffloadArrays: the integer arrays that say where the KV of a pass is when it is offloaded.
//
// OffloadedKv cuts them on both sides with one function and fills those of the host. Passes of one
// size have their arrays at the same offsets, which graphs rely on. Thread rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/arena.h"

namespace sluice {

struct OffloadArrays {
  struct Sizes {
    int64_t num_rows = 0;
    int64_t num_seqs = 0;
    int64_t own_blocks = 0;       // of one sequence, in stage or tails
    int64_t num_runs = 0;         // of history, that one layer walks
    int64_t resident_blocks = 0;  // in them
    int64_t slot_blocks = 0;
    int64_t num_slotfuls = 0;  // of the longest sequence; the same for every pass
    int64_t ids_per_seq = 0;
    int64_t places_per_seq = 0;
  };

  TensorView slot_table;     // i32 [slot_blocks]: 0, 1, 2, ...
  TensorView slot_begin;     // i32 [num_slotfuls]: 0, the tokens of a slot, of two, ...
  TensorView kv_rows;        // i32 [num_rows]
  TensorView kv_begin;       // i32 [num_seqs]
  TensorView history_begin;  // i32 [num_seqs]: 0
  TensorView run_begin;      // i32 [num_runs]
  TensorView run_end;        // i32 [num_runs]
  TensorView run_places;     // i32 [resident_blocks]: those of all resident runs
  TensorView block_table;    // i32 [num_seqs, own_blocks]
  TensorView block_ids;      // i32 [num_seqs, ids_per_seq]: of all blocks, from position 0 on
  TensorView block_places;   // i32 [num_seqs, places_per_seq]: of these, where on the device

  // No array is larger for smaller sizes, so what is planned for the largest pass holds all.
  static OffloadArrays cut(Arena& arena, const Sizes& sizes);
  static size_t bytes(const Sizes& sizes);

  // Of the host's side. What every pass has:
  void write_constants(int32_t slot_tokens) const;
  // Rows that go nowhere and sequences without blocks, after `num_rows` and `num_seqs` that are
  // there.
  void write_padding(int64_t num_rows, int64_t num_seqs) const;
};

}  // namespace sluice
