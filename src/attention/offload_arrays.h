// OffloadArrays: the integer arrays that describe where the KV of a pass over offloaded KV is.
//
// OffloadedKv takes them from a host and a device arena with the same function and fills those of
// the host. Passes of equal sizes have their arrays at equal offsets, which graphs rely on. Thread
// rule: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/arena.h"

namespace sluice {

struct OffloadArrays {
  struct Sizes {
    int64_t num_rows = 0;
    int64_t num_seqs = 0;
    int64_t own_blocks = 0;       // of one sequence in stage or tails, at most
    int64_t num_runs = 0;         // of history, per layer
    int64_t resident_blocks = 0;  // in these runs
    int64_t slot_blocks = 0;
    int64_t num_slotfuls = 0;    // slots that the longest sequence fills; equal in every pass
    int64_t ids_per_seq = 0;     // width of block_ids; 0: not needed
    int64_t places_per_seq = 0;  // width of block_places; 0: not needed
  };

  TensorView slot_table;     // i32 [slot_blocks]: 0, 1, 2, ...: block table of a slot
  TensorView slot_begin;     // i32 [num_slotfuls]: i * (tokens of a slot)
  TensorView kv_rows;        // i32 [num_rows]: row in stage or tails; -1: padding
  TensorView kv_begin;       // i32 [num_seqs]: position of the first own block
  TensorView history_begin;  // i32 [num_seqs]: 0
  TensorView run_begin;      // i32 [num_runs]: first position of each run
  TensorView run_end;        // i32 [num_runs]: position after its last token
  TensorView run_places;     // i32 [resident_blocks]: PlaceIds of all resident runs
  TensorView block_table;    // i32 [num_seqs, own_blocks]: StageIds or TailIds; -1: none
  TensorView block_ids;      // i32 [num_seqs, ids_per_seq]: BlockIds from position 0 on
  TensorView block_places;   // i32 [num_seqs, places_per_seq]: their PlaceIds, or -1

  // The total grows with every number of Sizes, so memory for the largest pass suffices for all.
  static OffloadArrays cut(Arena& arena, const Sizes& sizes);
  static size_t bytes(const Sizes& sizes);

  // On the host's arrays: writes those that are equal in every pass (slot_table, slot_begin,
  // history_begin).
  void write_constants(int32_t slot_tokens) const;
  // On the host's arrays: fills rows from `num_rows` and sequences from `num_seqs` on with padding:
  // rows that are not written, sequences without blocks.
  void write_padding(int64_t num_rows, int64_t num_seqs) const;
};

}  // namespace sluice
