// OffloadedPass: the description of a pass over offloaded KV, in addition to its AttentionPass.
//
// Made by OffloadedKv once per pass, read by OffloadExecutor for every layer. kv_begin, block_table
// and kv_rows of the AttentionPass describe the pass's own blocks (stage or tails); the tokens
// before them are `history`. All views are device memory. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention/policy.h"
#include "core/ids.h"
#include "core/tensor_view.h"

namespace sluice {

// Positions [begin_pos, end_pos) of sealed blocks that a pass may need, of one sequence.
struct HistoryRange {
  PassKind kind;
  int64_t first_row_pos = 0;  // position of the first row of the sequence in the pass
  int64_t begin_pos = 0;
  int64_t end_pos = 0;
};

// A run of one sequence's blocks in order of position: up to a slot's worth of blocks to load, or
// consecutive resident blocks.
struct HistoryBlocks {
  HistoryRange range;
  std::vector<BlockId> blocks;
  std::vector<PlaceId> places;  // of a resident run, one per block; empty: the run is loaded

  bool is_resident() const { return !places.empty(); }
};

// A run of one sequence's history. The same for every layer.
struct HistoryRun : HistoryBlocks {
  // Without the arrays, which follow when the pass has been planned.
  static HistoryRun of(HistoryBlocks blocks, int32_t seq_index) {
    HistoryRun run;
    static_cast<HistoryBlocks&>(run) = std::move(blocks);
    run.seq_index = seq_index;
    return run;
  }

  int32_t seq_index = 0;   // of the pass
  TensorView kv_begin;     // i32 [1]: position of the first token
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, num_blocks]: PlaceIds, or 0, 1, 2, ... in the slot
};

// A block that a prefill pass writes to the stage, and its destination: the host for a full block,
// the sequence's tail for a partial last one.
struct StagedOutcome {
  StageId stage_id;
  BlockId host_id;  // full blocks
  TailId tail;      // the partial one
  bool begins_sequence = false;
};

struct OffloadedPass {
  // Decode: all blocks of all sequences are on the device.
  bool is_in_place = false;
  // In order of sequence, then position; empty if the pass gathers or is in place.
  std::vector<HistoryRun> history;
  // If it gathers: the blocks that lists may name and that are not resident.
  std::vector<BlockId> gathered;
  // Prefill only, in order of stage_id.
  std::vector<StagedOutcome> staged;
  // i32 [num_seqs, max_places]: PlaceIds of the sequence's blocks, or -1; absent if not needed.
  TensorView block_places;
  TensorView history_begin;  // i32 [num_seqs]: 0
  TensorView slot_begin;     // i32 [max_slotfuls]: i * (tokens of a slot)
};

}  // namespace sluice
