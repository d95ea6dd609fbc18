// Tails: which sequence holds which tail, the device memory of its unsealed block.
//
// Owned by OffloadEngine, which has the memory. A sequence takes a tail with its first token after
// the sealed blocks and gives it back when the block is full and on its way to the host, or when
// the sequence loses its KV. Draft rows past the end of that block are in further tails. Thread
// rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/wait_gate.h"

namespace sluice {

class Tails {
 public:
  // REQUIRES: `compute`, which writes all tails, and `gate` outlive the tails.
  Tails(Device& device, Stream& compute, WaitGate& gate, int32_t num_tails);

  // Tail `index` of a sequence, in order of position; not valid when it holds fewer.
  TailId find(SequenceId sequence, int32_t index = 0) const;

  // Gives a sequence a tail, after those that it holds. Compute waits until the tail's previous
  // contents have left. REQUIRES: a tail is free.
  TailId take(SequenceId sequence);

  // Ends the hold of the first tail of a sequence; no effect if it holds none. The tail's contents
  // are lost unless their write-back is enqueued.
  void give_back(SequenceId sequence) { give_back_from(sequence, 0, 1); }
  // The same for all its tails from number `index` on.
  void give_back_from(SequenceId sequence, int32_t index) {
    give_back_from(sequence, index, num_tails());
  }

  // Recorded by the caller when it has enqueued the write-back of a tail.
  Event& left(TailId tail) { return *left_[static_cast<size_t>(tail.value)]; }

  int32_t num_tails() const { return static_cast<int32_t>(left_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

 private:
  struct Hold {
    SequenceId sequence;
    TailId tail;
  };
  std::vector<Hold>::const_iterator hold_of(SequenceId sequence) const;
  void give_back_from(SequenceId sequence, int32_t index, int32_t count);

  Stream& compute_;
  WaitGate& gate_;
  // Memory of both lists is taken at construction: they do not grow in a decode step.
  std::vector<TailId> free_;  // used first in, first out, so that a write-back has time to end
  std::vector<Hold> holds_;   // ascending by sequence, of one in order of position
  std::vector<std::unique_ptr<Event>> left_;  // [tail]
};

}  // namespace sluice
