// TileScorer: what a prefill policy that makes tile masks offers beside Policy.
//
// Such a policy scores keys before it selects, and reports on its masks. Policy::tile_scorer gives
// the executor and the observer access to it; policies/tile_policy.h is its base for policies.
// Thread rule: as Policy.
#pragma once

#include <cstdint>
#include <span>

#include "attention/policy.h"

namespace sluice {

// Consecutive keys of one sequence and layer: in the pool, a slot, the stage; in a walk that copies
// columns perhaps in the host tier. The values of these blocks may be undefined in other walks.
// Made by the executor.
struct KeyRun {
  KvBlocksView kv;
  TensorView kv_begin;     // i32 [1]: position of the first; a multiple of block_tokens
  TensorView kv_end;       // i32 [1]
  TensorView block_table;  // i32 [1, max_blocks]: blocks of `kv` from kv_begin on
  int64_t end_pos = 0;     // kv_end, as the host knows it
  int32_t walk = 0;        // of the policy's num_walks over the keys of a window
  // Which queries SelectInput::q has. 0: those for keys of the window's own chunk; 1: of the chunk
  // before it; 2: of all before that. Runs of zone 2 come first, and all runs of a zone have the
  // same q.
  int32_t zone = 0;
};

// Zones of KeyRun.
inline constexpr int32_t kNumKeyZones = 3;

// KV tiles of the tile masks of one layer, of all list heads, in all selections since `initialize`.
struct TileCounts {
  int64_t num_set = 0;
  int64_t num_visible = 0;
  int64_t num_cut = 0;  // that the rule chose and sparse_max_budget_tokens cut off
};

class TileScorer {
 public:
  virtual ~TileScorer() = default;

  // A policy gets all keys before `select`, in windows of this many rows, so that scores are never
  // kept for all rows of a pass. Per window: `score` for every run of keys up to the pass's end, in
  // ascending order, then `choose`. Windows ascend and begin at multiples of this number, counted
  // from the span's begin, and where queries differ by zones of keys at borders of chunks, too; it
  // is a multiple of the scope. Selections depend neither on the windows nor on the runs. 0: the
  // policy scores nothing in this layer, or these rows attend to everything; then only `select` is
  // called. Depends on `layer` and `span` of the input alone, since it is asked before the pass as
  // well, to plan the loads of its keys.
  virtual int32_t window_rows(const SelectInput&) const = 0;
  virtual void score(Stream&, const SelectInput&, const TileRows& window, const KeyRun&) = 0;
  virtual void choose(Stream&, const SelectInput&, const TileRows& window) = 0;

  // Some policies need the keys of a window several times (KeyRun::walk). `end_walk` is called
  // after the last run of each walk, before `choose`. Where the history is on the host, a walk
  // costs the transfer of all its keys, half of its KV; one that only copies columns
  // (gather_columns), keys and values, reads these single tokens in the host tier.
  virtual int32_t num_walks() const { return 1; }
  // The first of them that the rows of this input need. Depends on what window_rows depends on.
  virtual int32_t first_walk(const SelectInput&) const { return 0; }
  virtual bool copies_columns(int32_t /*walk*/) const { return false; }
  virtual void end_walk(Stream&, const SelectInput&, const TileRows& /*window*/, int32_t /*walk*/) {
  }

  // Of the rows of a selection with a mask, those whose captured mass says something: whole query
  // tiles that the rule alone does not give everything, from span.num_measured on.
  virtual TileRows audited_rows(const SelectInput&) const { return {}; }
  // One element per layer; may be empty. REQUIRES: the host has waited for the last pass.
  virtual std::span<const TileCounts> tile_counts() const { return {}; }
};

}  // namespace sluice
