// KvStation: the blocks of all sequences. One call for each event of their life, which reaches the
// block tables, the memory of blocks, the snapshots of states, the KV store, the pins and the
// events for routers in the order that they need.
//
// Owned by LlmEngine; the scheduler begins, reserves and releases, the engine commits. The memory
// is behind KvFollower and the store behind KvBacking: both may be absent (null objects). Thread
// rule: the engine's thread, but for pins().check_room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "engine/kv/cache_events.h"
#include "engine/kv/kv_backing.h"
#include "engine/kv/pins.h"
#include "engine/kv/state_snapshots.h"
#include "engine/sequence.h"
#include "kv/block_manager.h"
#include "kv/kv_follower.h"
#include "kv/kv_tables.h"

namespace sluice {

class KvStation final : public KvTables {
 public:
  struct Options {
    BlockManagerOptions blocks;     // its functions are the station's own
    int64_t max_pinned_blocks = 0;  // that pins may hold
    int64_t block_bytes = 0;        // all layers
    bool on_host = false;           // where blocks are
    bool has_states = false;        // sequences have recurrent states beside KV
    SnapshotSizes snapshots;        // of these
    int64_t snapshot_bytes = 0;     // of each
  };
  // Makes the KV store over the station's blocks and snapshots; empty: none.
  using MakeBacking =
      std::function<std::unique_ptr<KvBacking>(BlockManager& blocks, StateSnapshots& snapshots)>;
  // REQUIRES: the follower outlives the station. Errors: those of `make_backing`.
  KvStation(const Options& options, KvFollower& follower, const MakeBacking& make_backing = {},
            CacheEvents events = {});
  KvStation(const KvStation&) = delete;
  KvStation& operator=(const KvStation&) = delete;

  // ---- The life of a sequence, in this order.

  // How much of the sequence's tokens is cached; nothing of a prompt whose tokens need scores.
  PrefixMatch match(const Sequence& sequence) const;
  // Gives it the cached blocks of its tokens and reserves blocks for `num_new_tokens` more. All or
  // nothing: false, with nothing changed, when there are not enough free blocks. It may load from
  // the store afterwards (StoreSlot::is_loading): then it gets no rows until that is cleared.
  bool begin(Sequence& sequence, int64_t num_new_tokens);
  // The same without cached blocks, for a sequence that runs while no other does. Waits for blocks
  // that the KV store reads into or writes. Errors: kIo if these reads and writes make no progress.
  void begin_alone(Sequence& sequence);
  // The next `num_rows` rows of such a sequence have valid KV. The store gets none of it.
  void commit_alone(Sequence& sequence, int64_t num_rows);
  // Reserves blocks for `num_new_tokens` after its valid tokens. All or nothing.
  bool reserve(Sequence& sequence, int64_t num_new_tokens);
  // Reserves blocks for draft tokens after the row of a decode step, and returns for how many, at
  // most `num_drafts`. Takes free blocks only: no sequence loses its own for drafts.
  int64_t reserve_drafts(Sequence& sequence, int64_t num_drafts);
  // The next `num_rows` rows, which a pass of `kind` computed, have valid KV.
  void commit(Sequence& sequence, PassKind kind, int64_t num_rows);
  // Blocks without a valid token are no longer needed: drafts that were not accepted had them.
  void drop_drafts(Sequence& sequence);
  // It has ended by itself: its prompt's blocks are held if its request asked for that (add_pin).
  void ended(const Sequence& sequence);
  // It loses its blocks: preempted, finished or cancelled. It may begin again.
  void release(Sequence& sequence);

  // Of a sequence between `begin` and `release`.
  KvView view(SequenceId id) const override;

  // ---- Between steps.

  // Takes what was read from the store; `on_progress` gets each sequence that got something.
  void tend(const KvBacking::OnProgress& on_progress) { backing_->tend(on_progress); }
  // Waits until the store has read or written something, for a short time.
  void wait();
  // Waits until all blocks that shall be stored are. Gives up, false, if no block is written for
  // seconds. Errors: kDevice.
  bool flush();
  // Tells routers what prompts can and cannot find any more; called after each step.
  void tell_routers() { events_.flush(blocks_); }

  const BlockManager& blocks() const { return blocks_; }
  const KvBacking& store() const { return *backing_; }
  const StateSnapshots& snapshots() const { return snapshots_; }
  const CacheEvents& events() const { return events_; }
  Pins& pins() { return pins_; }
  const Pins& pins() const { return pins_; }

 private:
  void tell_committed(const Sequence& sequence);
  BlockManagerOptions with_functions(const Options& options);

  const bool has_states_;
  KvFollower& follower_;
  CacheEvents events_;
  BlockManager blocks_;
  StateSnapshots snapshots_;
  std::unordered_map<SequenceId, const SequenceKv*> begun_;
  std::unique_ptr<KvBacking> backing_;  // never null
  Pins pins_;
};

}  // namespace sluice
