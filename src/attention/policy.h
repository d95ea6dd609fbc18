// Policy: which pages of KV a pass attends to. A pure selection: summaries and queries in, page
// lists out.
//
// A policy moves nothing, waits for nothing and computes no attention; the executor does all three
// for every policy. To add one: derive from Policy in policies/, name it in make_policy.cc, and it
// is run through tests/attention/policy_conformance_test.cc like all others.
// Thread rule: the engine's thread; device work is enqueued on the stream that is passed in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "attention/policy_options.h"
#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "ops/attention.h"

namespace sluice {

enum class Phase { kPrefill, kDecode };

std::string_view phase_name(Phase phase);

// The largest passes that a policy must provide for. Made by engine/engine_plan.
struct PolicyLimits {
  int64_t max_decode_seqs = 0;   // sequences of a decode pass, one row each
  int64_t max_prefill_rows = 0;  // rows of one sequence in a prefill pass
  int64_t max_tokens = 0;        // of one sequence
};

// Device memory that a policy takes.
struct PolicyMemory {
  size_t summary_bytes = 0;  // what it keeps of every page of the KV cache
  size_t list_bytes = 0;     // what one selection needs: scores, lists
};

// Keys and values of one layer that a pass has just written. Made by the executor.
struct WrittenKv {
  int32_t layer = 0;
  AttentionBatch batch;    // the rows they are of
  KvBlocksView kv;         // where their blocks are now: pool, stage or tails
  TensorView kv_begin;     // i32 [num_seqs]: position of the first of those blocks
  TensorView block_table;  // i32 [num_seqs, max_blocks]: blocks of `kv` from kv_begin on
  TensorView block_ids;    // i32 [num_seqs, max_ids]: BlockIds of the sequence from position 0 on
};

// What a policy may look at when it selects for one layer.
struct SelectInput {
  Phase phase = Phase::kPrefill;
  int32_t layer = 0;
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // which rows belong to which sequence; prefill: of one sequence
  TensorView kv_end;     // i32 [num_seqs]: tokens of each sequence that exist
  TensorView block_ids;  // i32 [num_seqs, max_ids], as in WrittenKv
};

// What the policy chose. `pages` absent means everything.
struct Selection {
  PageList pages;
};

// KV in host memory that a pass might need: whole blocks of one sequence.
struct HistoryRange {
  Phase phase = Phase::kPrefill;
  int64_t first_row_pos = 0;  // position of the first row of the sequence in the pass
  int64_t begin_pos = 0;
  int64_t end_pos = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;
  virtual bool supports_prefill() const = 0;
  virtual bool supports_decode() const = 0;
  bool supports(Phase phase) const {
    return phase == Phase::kPrefill ? supports_prefill() : supports_decode();
  }

  // Whether it selects by page lists in a phase; if not, everything is attended.
  virtual bool makes_lists(Phase phase) const = 0;
  // Whether block_ids must be given: where lists are made or blocks are summarised.
  virtual bool wants_block_ids() const {
    return makes_lists(Phase::kPrefill) || makes_lists(Phase::kDecode);
  }
  // Whether decode steps may be recorded and replayed: what its functions enqueue depends on the
  // shapes of their input alone, and rows of padding (kv_end 0, block ids -1) are nothing to them.
  virtual bool capturable() const { return false; }

  // Errors: kInvalidArgument when the policy's pages do not fit blocks of that shape.
  virtual void check_layout(const KvBlockShape&) const {}
  // What `initialize` takes for so many blocks of pool or host tier.
  virtual PolicyMemory memory(const KvLayout&, int32_t /*num_blocks*/, const PolicyLimits&) const {
    return {};
  }
  // Takes the memory for summaries and lists; called once, after the KV cache was allocated.
  virtual void initialize(Device&, const KvLayout&, int32_t /*num_blocks*/, const PolicyLimits&) {}

  // Called for every layer of every pass, resident KV or not, when its keys and values are written
  // and before any block can leave the device. What is kept of a block belongs to its id: who finds
  // the block in the prefix cache finds its summary too.
  virtual void on_prefill_offload(Stream&, const WrittenKv&) {}
  virtual void on_decode_offload(Stream&, const WrittenKv&) {}

  // Forgets what was kept of a sequence that ended or was preempted. (Not of its blocks.)
  virtual void reset(SequenceId) {}

  // Selects for one layer of one pass. A prefill pass asks for one sequence after the other, so
  // that lists of query pages need room for one; the last selection is read before the next is
  // made.
  // Order: lists are ready in stream order; the host knows nothing of their contents.
  // Errors: kUnsupported when the policy does not support the phase. The executor has refused
  // before; a policy that is called directly must not compute something else in silence.
  Selection select_blocks(Stream& stream, const SelectInput& input);

  // What the host can say of lists that it never sees.
  // Tokens of [0, position] that the row there attends to; empty when only the device knows.
  virtual std::optional<int64_t> num_selected_tokens(Phase, int64_t position) const {
    return position + 1;
  }
  // Tokens of the pages of the longest list that a row can get in a sequence of up to `num_tokens`.
  virtual int64_t max_selected_tokens(Phase, int64_t num_tokens) const { return num_tokens; }
  // True only when every row of sequences of up to `num_tokens` attends to all before it: lists of
  // such a pass are not made unless its walk cannot do without.
  virtual bool selects_all(Phase, int64_t /*num_tokens*/) const { return false; }
  // False only when no row of the pass can attend to a token of the range: it is not loaded then.
  virtual bool may_select(const HistoryRange&) const { return true; }

 private:
  virtual Selection do_select_blocks(Stream& stream, const SelectInput& input) = 0;
};

// Makes what `sparse_policy` names: one policy for both phases, or "PREFILL+DECODE".
// Errors: kInvalidArgument naming the value and the names there are, a phase that nobody does, and
// options that the policy does not use.
std::unique_ptr<Policy> make_policy(std::string_view name, const PolicyOptions& options = {});

// The error both the executor and the policy give for a phase that the policy does not do.
[[noreturn]] void fail_unsupported_phase(const Policy& policy, Phase phase);

}  // namespace sluice
