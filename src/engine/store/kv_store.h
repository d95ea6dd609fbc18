// KvStore: joins the blocks in memory with those on disk (docs/kv_store.md).
//
// The KvBacking of engines with a KV store. Blocks are written behind the engine as they are
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

#include "attention/pass_kind.h"
#include "engine/kv/kv_backing.h"
#include "engine/sequence.h"
#include "engine/store/block_names.h"
#include "engine/store/mailbox.h"
#include "engine/store/prefix_loads.h"
#include "engine/store/state_writes.h"
#include "engine/store/write_behind.h"
#include "kv/block_manager.h"
#include "kv/block_port.h"
#include "sluice/kv_store_options.h"
#include "sluice/request_output.h"
#include "store/block_store.h"
#include "store/store_reader.h"
#include "store/store_writer.h"

namespace sluice {

class KvStore final : public KvBacking {
 public:
  struct Parts {
    BlockManager& blocks;
    std::unique_ptr<BlockPort> port;
    StoreFormat format;
    // Whether decode steps give KV the bits of prefill, so that blocks that they fill are stored.
    bool stores_decoded = false;
    std::function<std::optional<double>(int64_t position)> ns_per_row;  // as PrefixLoads
    StoreFiles* files = nullptr;                                        // null: the system's
    StateAccess states = {};                                            // of a hybrid model
  };

  // Opens the directory. REQUIRES: `blocks` outlives this object. Errors: those of BlockStore.
  KvStore(const KvStoreOptions& options, Parts parts);
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  bool exists() const override { return true; }
  bool writes() const override { return writes_.has_value(); }

  void begin(Sequence& sequence) override { loads_.begin(sequence); }
  void release(Sequence& sequence) override;
  // Blocks that are sealed now get names, and are written.
  void committed(Sequence& sequence, PassKind kind) override;
  void state_saved(const Sequence& sequence, int64_t prefix) override;
  void forget(BlockId id) override;

  void tend(const OnProgress& on_progress) override;
  void wait(std::chrono::nanoseconds limit) override { mailbox_.wait(limit); }
  bool is_busy() const override;
  bool flush(std::chrono::nanoseconds patience) override;

  // Of an engine that writes: whether the block was written, or was read.
  bool is_stored(BlockId id) const override { return writes_ && writes_->is_stored(id); }
  std::optional<StoreKey> key_of(BlockId id) const override;
  void set_pinned(std::set<StoreKey> keys) override { store_.set_pinned(std::move(keys)); }
  size_t num_loading_blocks(SequenceId id) const override { return loads_.num_left(id); }

  void read_stats(EngineStats& stats) const override;
  std::vector<std::string> warnings() const override;
  size_t num_warnings() const override { return num_warnings_; }

 private:
  BlockStoreOptions store_options(const KvStoreOptions& options, const StoreFormat& format);
  void name(const Sequence& sequence, size_t index, PassKind kind);
  bool is_wanted(const Sequence& sequence) const;
  bool writes_wait() const;

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
  std::optional<WriteBehind> writes_;        // empty: read-only
  std::optional<StateWrites> state_writes_;  // empty also without states
};

}  // namespace sluice
