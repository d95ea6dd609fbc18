// StateFollower: tells the states of a hybrid model what happens to the KV of its sequences, which
// is all that changes them, before it passes the event on.
//
// Owned by Rank; KvStation calls it in the place of the residency. Thread rule: the engine's
// thread.
#pragma once

#include "kv/kv_follower.h"
#include "state/state_pool.h"

namespace sluice {

class StateFollower final : public KvFollower {
 public:
  // REQUIRES: both outlive it.
  StateFollower(StatePool& states, KvFollower& next) : states_(states), next_(next) {}

  void committed(SequenceId sequence, int64_t num_tokens, BlockId newest_full) override {
    states_.committed(sequence, num_tokens);
    next_.committed(sequence, num_tokens, newest_full);
  }
  // Of a state nothing has to be dropped: it never has seen a draft that was not accepted.
  void drop_drafts(SequenceId sequence, int64_t num_tokens) override {
    next_.drop_drafts(sequence, num_tokens);
  }
  void release(SequenceId sequence) override {
    states_.release(sequence);
    next_.release(sequence);
  }
  void discard(BlockId id) override { next_.discard(id); }
  void save_state(SequenceId sequence, SnapshotId place) override { states_.save(sequence, place); }
  void restore_state(SequenceId sequence, SnapshotId place, int64_t num_tokens) override {
    states_.restore(sequence, place, num_tokens);
  }

 private:
  StatePool& states_;
  KvFollower& next_;
};

}  // namespace sluice
