// MassAudit: how much softmax mass the masks of a prefill pass capture, by sequence and layer.
//
// Owned by PolicyPair if sparse_audit is set. Executor gives it every attention call of a prefill
// pass that has a mask; it enqueues audit_mass (ops/tiles/audit_mass.h) over the same keys before.
// Read after each pass by the observer, which adds up. Without the option nothing is allocated and
// nothing is called. Thread rule: the engine's thread; device work is enqueued on the stream that
// is passed in.
#pragma once

#include <cstdint>
#include <span>

#include "attention/policy.h"
#include "core/arena.h"
#include "device/device.h"
#include "ops/tiles/audit_mass.h"

namespace sluice {

class MassAudit {
 public:
  // Bytes that `initialize` allocates. `limits`: those of a prefill pass and all its sequences.
  PolicyMemory memory(const KvLayout& layout, const PolicyLimits& limits) const;
  void initialize(Device& device, const KvLayout& layout, const PolicyLimits& limits);

  // Before the walks of a layer, in ascending order of layers. With the first one a pass of
  // `num_seqs` sequences begins.
  void begin_layer(Stream& stream, LayerId layer, int64_t num_seqs);
  // Begins the walk with a mask over the keys of one sequence of the pass. `rows`: those of its
  // rows in the pass that are audited (Policy::audited_rows); none: `visit` does nothing.
  void begin_walk(int64_t seq, const TileRows& rows);
  // Before each attention call of the walk, whose arguments these are: it may overwrite q.
  // REQUIRES: they have a mask.
  void visit(Stream& stream, const AttentionArgs& args);
  // After the walks of all sequences of a layer. After the last layer the tallies are copied to the
  // host: a few bytes for each sequence, layer and query head.
  void end_layer(Stream& stream);

  // The tallies (AuditCount) of a sequence of the last pass, one after the other for each layer.
  // REQUIRES: the host has waited for the pass.
  std::span<const int64_t> tallies(int64_t seq) const;
  int64_t num_layers() const { return num_layers_; }

 private:
  struct Memory {
    TensorView tallies;  // i64 [sequences of the largest pass, num_layers, counts]
    TensorView state;    // AuditMassArgs::state of the largest pass; packed to each walk
  };
  TensorView tally() const;
  static Memory cut_memory(Arena& arena, const KvLayout& layout, const PolicyLimits& limits);

  // From `initialize` on.
  int64_t num_layers_ = 0;
  Buffer device_memory_;
  Memory memory_;
  Buffer host_tallies_;  // pinned copy of memory_.tallies, from the end of each pass

  // Of the pass, and of the walk.
  TensorView tallies_;  // of the sequences of the pass
  LayerId layer_;
  int64_t seq_ = 0;
  TileRows rows_;
};

}  // namespace sluice
