// Residency: where KV lives, as one station between the engine and the memory of KV.
//
// LlmEngine makes one of the two kinds: ResidentKv (all KV in the device pool) or OffloadedKv (in
// the host tier; ring, stage and tails on the device). Everything that depends on that is
// decided here: where the rows of a pass are written, what its arrays say, the walk over the
// history
// (`executor`), what happens to full blocks and to those of an ended sequence, and what is fetched
// for the next step. The engine, its runner and its observer ask this contract and never which kind
// it is; sequences know block ids alone. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "attention/executor.h"
#include "core/arena.h"
#include "core/ids.h"
#include "kv/sequence_kv.h"
#include "kv/transfer_counters.h"

namespace sluice {

// The largest pass that must fit. Made by engine/engine_plan.
struct PassLimits {
  int64_t max_rows = 0;            // token rows
  int64_t max_seqs = 0;            // sequences, and rows whose logits are wanted
  int64_t max_blocks_per_seq = 0;  // of KV
};

// One sequence's share of a pass: rows [kv->num_tokens(), + num_rows). Made by engine/runner.
struct SequenceRows {
  SequenceId id;
  const SequenceKv* kv = nullptr;
  int64_t num_rows = 0;
};

// A sequence that the next step will probably have, and how many of its tokens are sealed by then.
// Made by engine/scheduler.
struct ExpectedSequence {
  const SequenceKv* kv = nullptr;
  int64_t num_sealed_tokens = 0;
};

// What `plan_pass` tells of a pass.
struct PassPlan {
  // A decode pass of this kind may be padded, recorded and replayed (engine/decode_graphs.h): what
  // is enqueued for it depends on the shapes of the pass and on `variant` alone.
  bool capturable = false;
  int32_t variant = 0;  // which of the residency's walks it takes
};

// The shapes of a pass's arrays, padding included.
struct PassShape {
  int64_t num_rows = 0;
  int64_t num_seqs = 0;
  // Block tables are as wide as sequences of this many tokens need; 0: as the longest of the pass.
  int64_t table_tokens = 0;
};

class Residency {
 public:
  virtual ~Residency() = default;

  // The walk over KV where it lives. Used by model/decoder.
  virtual Executor& executor() = 0;

  // ---- A pass, in this order. Between `begin_pass` and `end_pass` lies what is recorded of a pass
  // that is capturable, and only that.

  // Decides where the rows of a pass go and how its history is read. May enqueue waits on compute.
  // REQUIRES: blocks for the rows are reserved and the rows are not committed.
  virtual PassPlan plan_pass(Phase phase, std::span<const SequenceRows> sequences) = 0;

  // Cuts the arrays of the planned pass from both arenas in the same way, fills those of `host` and
  // points `pass` at those of `device`: kv_begin, block_table, block_ids and kv_rows. The caller
  // copies one arena to the other. Rows and sequences beyond the planned ones are padding.
  virtual void describe(const PassShape& shape, Arena& host, Arena& device,
                        AttentionPass& pass) = 0;
  // Bytes of the arrays of the largest pass, on each side.
  virtual size_t array_bytes() const = 0;

  // Called before anything of a pass is enqueued, and when all of it is, or has failed.
  // REQUIRES: `pass` stays as it is in between.
  virtual void begin_pass(const AttentionPass& pass) = 0;
  virtual void end_pass() = 0;

  // Called after end_pass: may begin to fetch what the next step will probably read. A wrong guess
  // costs transfers, never a result. `expect_next` is called only if there is something to fetch.
  using ExpectNext = std::function<std::vector<ExpectedSequence>()>;
  virtual void prefetch(const ExpectNext& expect_next) = 0;

  // ---- Sequences and blocks.

  // The rows that the planned pass computed for a sequence were committed; its last block may be
  // full now.
  virtual void committed(SequenceId sequence, const SequenceKv& kv) = 0;
  // The sequence loses its KV: preempted, finished or cancelled. Its blocks are released next.
  virtual void release(SequenceId sequence) = 0;
  // What a block holds can no longer be read, and the block may be given out again.
  virtual void discard(BlockId id) = 0;

  // Waits until all transfers of its own streams are through; compute is the caller's.
  virtual void synchronize() = 0;

  // ---- For observers and taps.

  // Bytes of one layer that full attention to all sealed blocks of a sequence has to bring to the
  // device.
  virtual int64_t flowing_bytes(const SequenceKv& kv) const = 0;
  // Everything moved so far; a vector has no element where nothing ever moves. Allocates nothing
  // when `counters` is one that was filled before. REQUIRES: the host has waited for the last pass.
  virtual void read_counters(TransferCounters& counters) const = 0;
  // Loads that a pass can have without using a slot again; 0 where nothing is loaded.
  virtual int32_t num_slots() const = 0;
  // Where the bytes of a sequence's block are: on the device or the host. REQUIRES: synchronized.
  virtual const std::byte* block_bytes(SequenceId sequence, const SequenceBlock& block,
                                       LayerId layer) const = 0;
};

}  // namespace sluice
