// StateSnapshots: keeps states of hybrid models at the ends of blocks, so that later requests go on
// from them (docs/adr/0039).
//
// Part of KvStation. KV of every token is in the prefix cache, a state only of the tokens after
// which it was copied. Passes end at the borders that next_border names, so that the state which a
// commit leaves is the snapshot. A snapshot belongs to the id of the prefix before it, and goes
// with that prefix. Its bytes are behind KvFollower. Without places this class does nothing. Thread
// rule: the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>

#include "attention/pass_kind.h"
#include "engine/sequence.h"
#include "kv/block_manager.h"
#include "kv/kv_follower.h"
#include "state/snapshot_table.h"

namespace sluice {

class StateSnapshots {
 public:
  // REQUIRES: both references outlive this object.
  StateSnapshots(const SnapshotSizes& sizes, const BlockManager& blocks, KvFollower& follower);

  bool exist() const { return table_.num_places() > 0; }
  // Whether a sequence can go on after the prefix.
  bool contains(int64_t prefix) const {
    return table_.contains(prefix) && !reading_.contains(prefix);
  }

  // Where the pass must end that computes rows of the sequence's text after its first `num_done`
  // tokens: the end of the text, or before that the next place of a snapshot.
  int64_t next_border(const Sequence& sequence, int64_t num_done) const;
  // Another prompt begins like this one and differs after `num_tokens` tokens: a snapshot there
  // lets it, and those like it, skip the beginning.
  void want(Sequence& sequence, int64_t num_tokens) const;

  // The sequence has got its cached blocks: it goes on from the snapshot after them.
  void begun(Sequence& sequence);
  // The sequence, which nothing was computed of, goes on from the snapshot after its newest full
  // block. False if there is none.
  bool resume(Sequence& sequence);
  // Rows of a sequence, which a pass of `kind` computed, are part of its states now. Returns the
  // prefix if a snapshot was taken after them that the sequence's next one does not replace; else
  // 0.
  int64_t committed(Sequence& sequence, PassKind kind);
  // The prefix cannot be found any more.
  void forgotten(int64_t prefix) { table_.drop(prefix); }

  // Holds the deepest snapshot of these blocks, which follow each other from a first one on, for a
  // pin: how many of the blocks it is after, and its prefix, for `unhold`. 0 blocks if there is
  // none, which holds nothing.
  struct Held {
    size_t num_blocks = 0;
    int64_t prefix = 0;
  };
  Held hold_deepest(std::span<const BlockId> blocks);
  void unhold(int64_t prefix) { table_.unhold(prefix); }

  // Holds the snapshot of a prefix while its bytes are read. REQUIRES: it is there.
  SnapshotId hold(int64_t prefix);
  // Takes a place for states that come from elsewhere, those after the newest full block of the
  // sequence, and holds it. Not valid if none is free or another sequence reads them. Nobody goes
  // on from it before end_read, nor after it if the bytes are not whole.
  SnapshotId begin_read(const Sequence& sequence);
  void end_read(int64_t prefix, bool is_whole);

  const SnapshotTable& table() const { return table_; }

 private:
  std::optional<int64_t> border_after(const Sequence& sequence, int64_t num_done) const;
  int64_t deepest_before(const SequenceKv& kv, int32_t num_blocks) const;
  bool is_kept(int64_t num_tokens) const;
  int64_t save_prompt(Sequence& sequence);
  int64_t save_decoded(Sequence& sequence);
  bool save(Sequence& sequence, int64_t prefix);

  const BlockManager& blocks_;
  KvFollower& follower_;
  int64_t granule_;   // whole blocks and scopes
  int64_t interval_;  // a multiple of it
  SnapshotTable table_;
  std::unordered_set<int64_t> reading_;  // prefixes whose bytes are not there yet
};

}  // namespace sluice
