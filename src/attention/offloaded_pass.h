// OffloadedPass: what a pass over offloaded KV has besides its AttentionPass.
//
// Made by OffloadedKv once per pass, read by OffloadExecutor for every layer. kv_begin, block_table
// and kv_rows of the AttentionPass speak of the pass's own blocks (stage or tails); the tokens
// before them are `history`. All views are device memory. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/policy.h"
#include "core/ids.h"
#include "core/tensor_view.h"

namespace sluice {

// KV in host memory that a pass might need: whole blocks of one sequence.
struct HistoryRange {
  Phase phase = Phase::kPrefill;
  int64_t first_row_pos = 0;  // position of the first row of the sequence in the pass
  int64_t begin_pos = 0;
  int64_t end_pos = 0;
};

// A run of one sequence's blocks in order of position: a slotful that comes from the host tier, or
// neighbours that stay on the device.
struct HistoryBlocks {
  HistoryRange range;
  std::vector<BlockId> blocks;
  std::vector<PlaceId> places;  // of resident blocks; empty: to be loaded

  bool is_resident() const { return !places.empty(); }
};

// A run of one sequence's history. The same for every layer.
struct HistoryRun : HistoryBlocks {
  int32_t seq_index = 0;   // of the pass
  TensorView kv_begin;     // i32 [1]: position of the first token
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, num_blocks]: PlaceIds, or 0, 1, 2, ... in the slot
};

// A block that a prefill pass writes to the stage, and where it goes afterwards: full ones to the
// host, a last partial one to the sequence's tail.
struct StagedOutcome {
  StageId stage_id;
  BlockId host_id;  // full blocks
  TailId tail;      // the partial one
  bool begins_sequence = false;
};

struct OffloadedPass {
  bool is_in_place = false;           // decode: nothing has to come, all blocks of all sequences
                                      // are on the device
  std::vector<HistoryRun> history;    // in order of sequence, then position; none where the
                                      // executor gathers, or in place
  std::vector<BlockId> gathered;      // where it gathers: all blocks that lists could name and
                                      // that are not resident
  std::vector<StagedOutcome> staged;  // prefill only, in order of stage_id
  TensorView block_places;            // i32 [num_seqs, max_places]: PlaceIds of the sequence's
                                      // blocks, or -1; absent: the pass does not ask
  TensorView history_begin;           // i32 [num_seqs]: 0
  TensorView slot_table;              // i32 [1, slot_blocks]: 0, 1, 2, ...
  TensorView slot_begin;              // i32 [max_slotfuls]: 0, the tokens of a slot, of two, ...
};

}  // namespace sluice
