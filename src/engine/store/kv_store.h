// KvStore: joins the blocks in memory with those on disk (docs/kv_store.md).
//
// Made by LlmEngine if a store is asked for. Blocks are written behind the engine as they are
// sealed (write_behind.h), and the beginnings of prompts are read when sequences are admitted
// (prefix_loads.h). The engine never waits for the disk, but for `wait` and `flush`; faults of the
// disk are misses and skipped blocks. Thread rule: the engine's thread, but for the members that
// say otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "attention/policy.h"
#include "engine/sequence.h"
#include "engine/store/block_names.h"
#include "engine/store/mailbox.h"
#include "engine/store/prefix_loads.h"
#include "engine/store/write_behind.h"
#include "kv/block_manager.h"
#include "kv/block_port.h"
#include "sluice/kv_store_options.h"
#include "sluice/request_output.h"
#include "store/block_store.h"
#include "store/store_reader.h"
#include "store/store_writer.h"

namespace sluice {

class KvStore {
 public:
  struct Parts {
    BlockManager& blocks;
    std::unique_ptr<BlockPort> port;
    StoreFormat format;
    // Whether decode steps give KV the bits of prefill, so that blocks that they fill are stored.
    bool stores_decoded = false;
    std::function<std::optional<double>(int64_t position)> ns_per_row;  // as PrefixLoads
    StoreFiles* files = nullptr;                                        // null: the system's
  };

  // Opens the directory. REQUIRES: `blocks` outlives this object. Errors: those of BlockStore.
  KvStore(const KvStoreOptions& options, Parts parts);
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  // ---- The life of sequences and blocks.

  // A sequence has just got its blocks; it may load now (Sequence::is_loading).
  void begin(Sequence& sequence) { loads_.begin(sequence); }
  // A sequence loses its blocks.
  void release(Sequence& sequence);
  // Rows of a sequence were committed: blocks that are sealed now get names, and are written.
  void committed(Sequence& sequence, Phase phase);
  // A block's contents are gone.
  void forget(BlockId id);

  // ---- Between steps.

  // Takes what the threads of the store have done, and gives them more to do. `on_progress` is
  // called for each sequence of whose prompt something was read. Errors: kDevice.
  using OnProgress = std::function<void(Sequence&)>;
  void tend(const OnProgress& on_progress = {});
  // Waits until `tend` has something to take, at most this long.
  void wait(std::chrono::nanoseconds limit) { mailbox_.wait(limit); }
  // Whether anything is left to do for `tend`.
  bool is_busy() const;
  // Waits until all blocks are stored that shall be; false if none was in `patience`.
  bool flush(std::chrono::nanoseconds patience);

  // Whether blocks are written; and whether this one was, or was read.
  bool writes() const { return writes_.has_value(); }
  bool is_stored(BlockId id) const { return writes_ && writes_->is_stored(id); }

  // The key of a block that has a name; and the keys of blocks that are evicted last.
  std::optional<StoreKey> key_of(BlockId id) const;
  void set_pinned(std::set<StoreKey> keys) { store_.set_pinned(std::move(keys)); }
  // As PrefixLoads::num_left.
  size_t num_loading_blocks(SequenceId id) const { return loads_.num_left(id); }

  // Adds its counts.
  void read_stats(EngineStats& stats) const;
  // What went wrong so far, one line each; any thread.
  std::vector<std::string> warnings() const;
  size_t num_warnings() const { return num_warnings_; }

 private:
  BlockStoreOptions store_options(const KvStoreOptions& options, const StoreFormat& format);
  void name(const Sequence& sequence, size_t index, Phase phase);

  BlockManager& blocks_;
  const bool stores_decoded_;
  const int64_t min_tokens_;
  mutable std::mutex warnings_mutex_;
  std::vector<std::string> warnings_;  // under the mutex
  std::atomic<size_t> num_warnings_ = 0;
  Mailbox mailbox_;
  std::unique_ptr<BlockPort> port_;
  BlockNames names_;
  BlockStore store_;
  // The threads end before what they use; their last letters are never taken.
  StoreReader reader_;
  StoreWriter writer_;
  PrefixLoads loads_;
  std::optional<WriteBehind> writes_;  // empty: read-only
};

}  // namespace sluice
