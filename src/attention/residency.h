// Residency: the interface between the engine and the memory in which KV lives.
//
// LlmEngine makes one of two kinds: ResidentKv (all KV in the device pool) or OffloadedKv (in the
// host tier, with ring, stage and tails on the device). Everything that depends on the kind is
// behind this interface: where the rows of a pass are written, its arrays, the attention over the
// history (`executor`), the handling of full and discarded blocks (as a KvFollower), and
// prefetching for the next step. The engine, its runner and its observer do not test the kind
// (docs/adr/0013); sequences have block ids only. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/executor.h"
#include "core/arena.h"
#include "core/ids.h"
#include "kv/block_port.h"
#include "kv/kv_follower.h"
#include "kv/sequence_kv.h"
#include "kv/slot_contents.h"
#include "kv/transfer_counters.h"

namespace sluice {

// The largest pass that must fit. Made by engine/plan/engine_plan.
struct PassLimits {
  int64_t max_rows = 0;            // token rows
  int64_t max_seqs = 0;            // sequences
  int64_t max_blocks_per_seq = 0;  // of KV
  int64_t max_draft_rows = 0;      // rows of a verify pass beside one of each sequence
  int64_t zone_rows = 0;           // rows whose state attention carries from zone to zone of keys
                                   // (QueryZones): all or none
  int64_t chunk_tokens = 0;        // of keys that repeat their positions; 0: no row has zones
  int64_t num_chunk_borders = 0;   // AttentionPass::chunk_borders
  bool has_states = false;         // sequences have recurrent states beside KV

  // Rows whose logits are computed.
  int64_t max_logit_rows() const { return max_seqs + max_draft_rows; }
  // Rows of a verify pass whose records are kept.
  int64_t max_record_rows() const {
    return has_states && max_draft_rows > 0 ? max_seqs + max_draft_rows : 0;
  }
};

// One sequence's share of a pass: rows [first_pos(), + num_rows). Made by engine/runner.
struct SequenceRows {
  SequenceId id;
  KvView kv;
  int64_t num_rows = 0;
  // Rows between the valid tokens and these, written by earlier draft passes of the same step. They
  // are attended to as the sequence's newest tokens, and never become valid.
  int64_t num_ahead = 0;

  int64_t first_pos() const { return kv.num_tokens + num_ahead; }
};

// A sequence that the next step will probably include, and the number of its tokens that are sealed
// by then. Made by engine/runner.
struct ExpectedRows {
  KvView kv;
  int64_t num_sealed_tokens = 0;
  int64_t num_rows = 0;    // of its next span; 0 in decode
  bool is_verify = false;  // of a decode step: it attends to everything
};

// Properties of a planned pass, for graphs.
struct PassPlan {
  // A decode pass of this kind may be padded, captured and replayed (engine/decode_graphs.h): the
  // work enqueued for it depends only on the shapes of the pass and on `variant`.
  bool capturable = false;
  int32_t variant = 0;  // passes of different variants need different graphs
};

// The shapes of a pass's arrays, padding included.
struct PassShape {
  int64_t num_rows = 0;
  int64_t num_seqs = 0;
  // Block tables are wide enough for this many tokens; 0: for the longest sequence of the pass.
  int64_t table_tokens = 0;
};

class Residency : public KvFollower {
 public:
  // Enqueues attention over the KV. Used by model/decoder.
  virtual Executor& executor() = 0;

  // ---- A pass: the functions are called in this order. The work between `begin_pass` and
  // `end_pass`, and only that, is what a capturable pass captures.

  // Decides where the rows of a pass go and how its history is read. May enqueue waits on compute.
  // REQUIRES: blocks for the rows are reserved and the rows are not committed.
  virtual PassPlan plan_pass(PassKind kind, std::span<const SequenceRows> sequences) = 0;

  // Cuts the arrays of the planned pass from both arenas in the same way, fills those of `host` and
  // points `pass` at those of `device`: kv_begin, block_table, block_ids and kv_rows. The caller
  // copies one arena to the other. Rows and sequences beyond the planned ones are padding.
  virtual void describe(const PassShape& shape, Arena& host, Arena& device,
                        AttentionPass& pass) = 0;
  // Bytes of the arrays of the largest pass, on each side.
  virtual size_t array_bytes() const = 0;

  // Called before the work of a pass is enqueued, and after all of it is enqueued or has failed.
  // REQUIRES: `pass` does not change in between.
  virtual void begin_pass(const AttentionPass& pass) = 0;
  virtual void end_pass() = 0;

  // Called after end_pass: may begin to load what the next step will probably read; empty: it is
  // not known. A wrong prediction costs transfers and changes no result.
  virtual void prefetch(std::span<const ExpectedRows> expected) = 0;

  // Waits until all transfers have ended. REQUIRES: the caller waits for compute as well.
  virtual void synchronize() = 0;

  // ---- For the KV store.

  // A way for whole blocks to and from host memory. Takes memory (port_bytes), so it is made only
  // if it is used. REQUIRES: this object outlives it; policies are initialized.
  virtual std::unique_ptr<BlockPort> make_port() = 0;

  // ---- For observers and taps.

  // Bytes of one layer that full attention to all sealed blocks of a sequence would load to the
  // device.
  virtual int64_t flowing_bytes(const KvView& kv) const = 0;
  // All transfers so far; the vectors stay empty if KV is never transferred. Allocates nothing if
  // `counters` was filled before. REQUIRES: the host has waited for the last pass.
  virtual void read_counters(TransferCounters& counters) const = 0;
  // Whether the device has the KV of a sealed block, so that no pass loads it.
  virtual bool is_on_device(BlockId id) const = 0;
  // Loads that a pass can have without reusing a slot; 0 if nothing is loaded.
  virtual int32_t num_slots() const = 0;
  // What these slots have, by slot; within a pass, too.
  virtual std::vector<SlotContents> slot_contents() const = 0;
  // Address of a sequence's block, on the device or the host. REQUIRES: synchronized.
  virtual const std::byte* block_bytes(SequenceId sequence, const SequenceBlock& block,
                                       LayerId layer) const = 0;
};

}  // namespace sluice
