// KvFollower: follows what happens to the blocks of sequences, in the order in which it happens.
//
// Implemented by Residency, which keeps the bytes of the blocks. This class itself follows nothing,
// for block tables without memory. Called by engine/kv/kv_station. Thread rule: the engine's
// thread.
#pragma once

#include "core/ids.h"
#include "kv/sequence_kv.h"

namespace sluice {

class KvFollower {
 public:
  virtual ~KvFollower() = default;

  // The rows that the planned pass computed for a sequence were committed; its last block may be
  // full now.
  virtual void committed(SequenceId /*sequence*/, const SequenceKv& /*kv*/) {}
  // Draft rows after the valid tokens are no longer needed, nor what they took.
  virtual void drop_drafts(SequenceId /*sequence*/, const SequenceKv& /*kv*/) {}
  // The sequence loses its KV: preempted, finished or cancelled. Its blocks are released next.
  virtual void release(SequenceId /*sequence*/) {}
  // The contents of a block are no longer needed; the block may be reused.
  virtual void discard(BlockId /*id*/) {}
};

}  // namespace sluice
