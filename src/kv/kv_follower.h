// KvFollower: follows what happens to the blocks of sequences, in the order in which it happens.
//
// Implemented by Residency, which keeps the bytes of the blocks, and by StateFollower, which keeps
// the states of hybrid models. This class itself follows nothing,
// for block tables without memory. Called by engine/kv/kv_station. Arguments are plain values, so
// that StepRecorder can send them to another rank. Thread rule: the engine's thread.
#pragma once

#include <cstdint>

#include "core/ids.h"

namespace sluice {

class KvFollower {
 public:
  virtual ~KvFollower() = default;

  // The rows that the planned pass computed for a sequence were committed: `num_tokens` have valid
  // KV now. `newest_full`: the last block that is full; not valid if none is.
  virtual void committed(SequenceId /*sequence*/, int64_t /*num_tokens*/, BlockId /*newest_full*/) {
  }
  // Draft rows after the `num_tokens` valid tokens are no longer needed, nor what they took.
  virtual void drop_drafts(SequenceId /*sequence*/, int64_t /*num_tokens*/) {}
  // The sequence loses its KV: preempted, finished or cancelled. Its blocks are released next.
  virtual void release(SequenceId /*sequence*/) {}
  // The contents of a block are no longer needed; the block may be reused.
  virtual void discard(BlockId /*id*/) {}
  // Of hybrid models: the state of the sequence after its committed tokens is wanted in a place;
  // and the sequence goes on from the state in a place, that after `num_tokens` tokens.
  virtual void save_state(SequenceId /*sequence*/, SnapshotId /*place*/) {}
  virtual void restore_state(SequenceId /*sequence*/, SnapshotId /*place*/,
                             int64_t /*num_tokens*/) {}
};

}  // namespace sluice
