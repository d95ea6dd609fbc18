// Policy: selects the KV that passes of one phase attend to. Its input are summaries of keys and
// queries, its output page lists or tile masks.
//
// A policy transfers nothing, waits for nothing and computes no attention; the executor does this
// for all policies. The engine has a pair (policy_pair.h), one for prefill and one for decode. To
// add a policy: derive from a class of policies/ (or from Policy) and add a row to
// make_policies.cc; tests/attention/policy_conformance_test.cc then runs it as well. Thread rule:
// the engine's thread; device work is enqueued on the stream that is passed in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "attention/pass_kind.h"
#include "attention/selection_rule.h"
#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "ops/attention/attention.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// The scope (Policy::prefill_scope_tokens) of a policy whose lists may depend on all queries of a
// prompt. It is longer than any prompt. So a prompt is one span, and no block is in a scope that is
// complete before its prompt ends: such KV is neither found in the prefix index nor entered.
inline constexpr int32_t kPromptScopeTokens = 1 << 30;

// Which of the model's query heads a policy selects for: those of one of several ranks with as many
// each. Made by the engine.
struct HeadShare {
  int32_t rank = 0;
  int32_t num_ranks = 1;
};

// The largest selection, by which a policy allocates memory. Made by PolicyPair.
struct PolicyLimits {
  int64_t max_seqs = 0;    // sequences of one selection: those of a decode pass; 1 in prefill
  int64_t max_rows = 0;    // rows of one sequence in a pass; 1 in decode
  int64_t max_tokens = 0;  // of one sequence
  int64_t num_q_heads = 0;
  HeadShare share = {};
  bool counts_reads = false;  // decode: page_reads is asked for
  bool has_zones = false;     // prefill: queries differ by zones of keys (SelectInput::zones)
};

// Memory that a policy takes, on the device unless its comment says otherwise.
struct PolicyMemory {
  size_t summary_bytes = 0;  // summaries of all pages of the KV cache
  size_t list_bytes = 0;     // scratch and result of one selection: scores, lists, masks
  size_t pinned_bytes = 0;   // pinned host memory: copies of counts
};

// Keys and values of one layer that a pass has just written. Made by the executor.
struct WrittenKv {
  PassKind kind;
  LayerId layer;                   // the first of those
  int32_t num_layers = 1;          // that were written, consecutive
  int64_t layer_stride_bytes = 0;  // from a block of a layer to that of the next
  AttentionBatch batch;            // the rows that were written
  KvBlocksView kv;                 // the blocks of the first layer, in pool, stage or tails
  TensorView kv_begin;             // i32 [num_seqs]: position of the first of those blocks
  TensorView block_table;          // i32 [num_seqs, max_blocks]: blocks of `kv` from kv_begin on
  TensorView block_ids;  // i32 [num_seqs, max_ids]: BlockIds of the sequence from position 0 on
};

// Rows [first_pos, first_pos + num_rows) of one sequence in a prefill pass, as the host knows them.
// Made by engine/runner.
struct PrefillSpan {
  int64_t first_pos = 0;
  int64_t num_rows = 0;
  int64_t prompt_end = 0;    // tokens that prefill covers; after a preemption, of the longer prompt
  int64_t num_measured = 0;  // tokens that a pass before a preemption audited, as far as it does

  int64_t end_pos() const { return first_pos + num_rows; }
};

// The input of one selection: one layer of one pass.
struct SelectInput {
  LayerId layer;
  TensorView q;           // bf16 [num_rows, num_q_heads, head_dim], after rope
  QueryZones zones = {};  // queries for keys of earlier chunks: in decode a policy that scores keys
                          // by `q` scores those by these, in prefill `q` is that of the run's zone
  float scale = 1.0f;     // score = scale * q.k
  AttentionBatch batch;   // which rows belong to which sequence; prefill: of one sequence
  PrefillSpan span;       // prefill: that sequence's rows
  TensorView kv_end;      // i32 [num_seqs]: tokens of each sequence, this pass included
  TensorView block_ids;   // i32 [num_seqs, max_ids], as in WrittenKv
};

// How often a decode policy chose each page by its score, over layers, KV heads and steps since
// `initialize`. Sums wrap.
struct PageReadCounts {
  TensorView counts;        // i32 [num_blocks, pages_per_block], on the device; absent: no counts
  int32_t page_tokens = 0;  // pages of a block are in order of position
};

class TileScorer;

// A policy of one phase. For a policy that supports both, such as streaming, two objects are made.
class Policy {
 public:
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  std::string_view name() const { return name_; }
  Phase phase() const { return phase_; }
  // A sentence about what the policy reads beside the options, for the user; usually none.
  const std::string& note() const { return note_; }

  // The properties of the selections that the host can compute. `form` does not depend on the
  // block.
  // Errors: kInvalidArgument when the policy's pages do not fit blocks of that shape.
  virtual SelectionRule rule(const KvBlockShape& block) const = 0;

  // Prefill: the rows whose queries a row's list may depend on are those of its scope, `scope` rows
  // at an absolute multiple of it, as far as they exist; beside them it depends on the keys up to
  // the scope's end, the options and the prompt's end. Passes begin at multiples of the scope, so
  // that chunks and prefix hits do not change a list. 1: lists depend on the row alone.
  virtual int32_t prefill_scope_tokens() const { return 1; }
  // Prefill: lists of the prompt's last rows, this many, depend on where the prompt ends. KV of
  // scopes that hold one of them must not be found by other prompts.
  virtual int32_t prefill_tail_tokens() const { return 0; }

  // Whether decode steps with this policy may be captured and replayed: the work that its functions
  // enqueue depends only on the shapes of their input, and they accept rows of padding (kv_end 0,
  // block ids -1). Must hold for the prefill policy too, since it gets the keys of decode steps.
  virtual bool capturable() const { return false; }

  // Whether it chooses as it should where queries differ by zones of keys: in decode by
  // SelectInput::zones; in prefill each run of keys comes with the queries of its zone. REQUIRES
  // then: its scope divides a chunk.
  virtual bool knows_zones() const { return false; }

  // Bytes that `initialize` allocates for this many blocks of pool or host tier.
  virtual PolicyMemory memory(const KvLayout&, int32_t /*num_blocks*/, const PolicyLimits&) const {
    return {};
  }
  // Allocates summaries and lists; called once, after the KV cache was allocated.
  virtual void initialize(Device&, const KvLayout&, int32_t /*num_blocks*/, const PolicyLimits&) {}

  // Called for every layer of every pass of either phase, after its keys and values are written and
  // before any block can leave the device: in prefill layer by layer, before `select`; else once
  // for all layers, at the last one, so `select` sees no summary of the pass's own rows. Summaries
  // are indexed by block id, so that a sequence that finds a block in the prefix cache also has its
  // summary.
  virtual void on_keys_written(Stream&, const WrittenKv&) {}

  // What a prefill policy that makes tile masks offers (tile_scorer.h): the executor then shows it
  // the keys of a pass before `select`. Null: the policy reads no keys but in on_keys_written.
  virtual TileScorer* tile_scorer() { return nullptr; }

  // Selects for one layer of one pass of the policy's phase. In prefill it is called for one
  // sequence at a time, so lists need memory for one sequence only; a selection is read, in stream
  // order, before the next one overwrites it.
  // Order: lists are ready in stream order; the host does not read them (invariant 12).
  virtual Selection select(Stream& stream, const SelectInput& input) = 0;

  // The counts are written by passes on the compute stream. None unless pages have scores and
  // PolicyLimits::counts_reads is set.
  virtual PageReadCounts page_reads() const { return {}; }

 protected:
  // REQUIRES: `name` outlives the policy.
  Policy(std::string_view name, Phase phase) : name_(name), phase_(phase) {}

  void set_note(std::string note) { note_ = std::move(note); }

 private:
  std::string_view name_;
  Phase phase_;
  std::string note_;
};

}  // namespace sluice
