// MassAudit: how much softmax mass the masks of prefill capture, summed by layer.
//
// Owned by PolicyPair if sparse_audit is set. Executor gives it every attention call of a prefill
// pass that has a mask; it enqueues audit_mass (ops/audit_mass.h) over the same keys before. Read
// by the observer. Without the option nothing is allocated and nothing is called. Thread rule: the
// engine's thread; device work is enqueued on the stream that is passed in.
#pragma once

#include <cstdint>
#include <span>

#include "attention/policy.h"
#include "core/arena.h"
#include "device/device.h"
#include "ops/audit_mass.h"

namespace sluice {

class MassAudit {
 public:
  // Bytes that `initialize` allocates. `limits` are those of the prefill policy.
  PolicyMemory memory(const KvLayout& layout, const PolicyLimits& limits) const;
  void initialize(Device& device, const KvLayout& layout, const PolicyLimits& limits);

  // Begins the walk with a mask over the keys of one sequence in one layer. `rows`: those of its
  // rows in the pass that are audited (Policy::audited_rows); none: `visit` does nothing.
  void begin(LayerId layer, const TileRows& rows);
  // Before each attention call of the walk, whose arguments these are: it may overwrite q.
  // REQUIRES: they have a mask.
  void visit(Stream& stream, const AttentionArgs& args);
  // After the walks of all sequences of a layer. After the last layer, tallies that have changed
  // are copied to the host: a few bytes for each layer and query head.
  void end_layer(Stream& stream, LayerId layer);

  // The tally of a layer (AuditCount) over all passes. REQUIRES: the host has waited for the last
  // pass.
  std::span<const int64_t> tally(LayerId layer) const;
  int64_t num_layers() const { return num_layers_; }

 private:
  struct Memory {
    TensorView tallies;  // i64 [num_layers, kAuditCounts + num_q_heads]
    TensorView state;    // AuditMassArgs::state of the largest pass; packed to each walk
  };
  static Memory cut_memory(Arena& arena, const KvLayout& layout, const PolicyLimits& limits);

  // From `initialize` on.
  int64_t num_layers_ = 0;
  Buffer device_memory_;
  Memory memory_;
  Buffer host_tallies_;  // pinned copy of memory_.tallies, from the end of each pass
  bool is_zeroed_ = false;
  bool has_changed_ = false;  // since the last copy

  // Of the walk.
  LayerId layer_;
  TileRows rows_;
};

}  // namespace sluice
