// Policy: which KV a pass of one phase attends to. A pure selection: summaries and queries in, page
// lists or tile masks out.
//
// A policy moves nothing, waits for nothing and computes no attention; the executor does all three
// for every policy. The engine holds a pair of them (policy_pair.h), one for prefill and one for
// decode. To add one: derive from Policy in policies/, give it a row in make_policies.cc, and it is
// run through tests/attention/policy_conformance_test.cc like all others.
// Thread rule: the engine's thread; device work is enqueued on the stream that is passed in.
#pragma once

#include <cstdint>
#include <string_view>

#include "attention/selection_rule.h"
#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "ops/attention.h"

namespace sluice {

enum class Phase { kPrefill, kDecode };

std::string_view phase_name(Phase phase);

// The largest selection that a policy must provide for. Made by PolicyPair.
struct PolicyLimits {
  int64_t max_seqs = 0;    // sequences of one selection: those of a decode pass; 1 in prefill
  int64_t max_rows = 0;    // rows of one sequence in a pass; 1 in decode
  int64_t max_tokens = 0;  // of one sequence
};

// Device memory that a policy takes.
struct PolicyMemory {
  size_t summary_bytes = 0;  // what it keeps of every page of the KV cache
  size_t list_bytes = 0;     // what one selection needs: scores, lists
};

// Keys and values of one layer that a pass has just written. Made by the executor.
struct WrittenKv {
  Phase phase = Phase::kPrefill;  // of the pass, not of the policy
  LayerId layer;
  AttentionBatch batch;    // the rows they are of
  KvBlocksView kv;         // where their blocks are now: pool, stage or tails
  TensorView kv_begin;     // i32 [num_seqs]: position of the first of those blocks
  TensorView block_table;  // i32 [num_seqs, max_blocks]: blocks of `kv` from kv_begin on
  TensorView block_ids;    // i32 [num_seqs, max_ids]: BlockIds of the sequence from position 0 on
};

// What a policy may look at when it selects for one layer.
struct SelectInput {
  LayerId layer;
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // which rows belong to which sequence; prefill: of one sequence
  TensorView kv_end;     // i32 [num_seqs]: tokens of each sequence that exist
  TensorView block_ids;  // i32 [num_seqs, max_ids], as in WrittenKv
};

// What the policy chose: page lists, a tile mask, or with neither everything. Never both.
struct Selection {
  PageList pages;
  TileMask mask;
};

// A thing of one phase. A policy that serves both, such as streaming, is made twice.
class Policy {
 public:
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  std::string_view name() const { return name_; }
  Phase phase() const { return phase_; }

  // What the host may know of the selections. `form` does not depend on the block.
  // Errors: kInvalidArgument when the policy's pages do not fit blocks of that shape.
  virtual SelectionRule rule(const KvBlockShape& block) const = 0;

  // Whether decode steps may be recorded and replayed: what its functions enqueue depends on the
  // shapes of their input alone, and rows of padding (kv_end 0, block ids -1) are nothing to them.
  // Asked of the prefill policy, too, which hears of decoded keys.
  virtual bool capturable() const { return false; }

  // What `initialize` takes for this many blocks of pool or host tier.
  virtual PolicyMemory memory(const KvLayout&, int32_t /*num_blocks*/, const PolicyLimits&) const {
    return {};
  }
  // Takes the memory for summaries and lists; called once, after the KV cache was allocated.
  virtual void initialize(Device&, const KvLayout&, int32_t /*num_blocks*/, const PolicyLimits&) {}

  // Called for every layer of every pass of either phase, when its keys and values are written and
  // before any block can leave the device. What is kept of a block belongs to its id: a sequence
  // that finds the block in the prefix cache finds its summary, too.
  virtual void on_keys_written(Stream&, const WrittenKv&) {}

  // Selects for one layer of one pass of the policy's phase. A prefill pass asks for one sequence
  // after the other, so that lists of query pages need room for one; the last selection is read
  // before the next is made.
  // Order: lists are ready in stream order; the host never learns their contents.
  virtual Selection select(Stream& stream, const SelectInput& input) = 0;

 protected:
  // REQUIRES: `name` outlives the policy.
  Policy(std::string_view name, Phase phase) : name_(name), phase_(phase) {}

 private:
  std::string_view name_;
  Phase phase_;
};

}  // namespace sluice
