// PrefixLoads: reads the beginnings of prompts from the store into blocks that their sequences have
// reserved.
//
// Part of KvStore. A sequence that loads has its blocks, computes nothing, and gets no rows
// (StoreSlot::is_loading). Blocks are committed in order, as if a pass had computed them, so a
// block that was not read right, and all after it, leave no trace: they are computed. Of a hybrid
// model the states after the last block are read next; where that fails, or a block was missing,
// the sequence begins again with what its states allow. Each read holds its block, whatever becomes
// of the sequence. Thread rule: the engine's thread; the store's threads write to the blocks'
// memory and post letters.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "engine/kv/state_snapshots.h"
#include "engine/sequence.h"
#include "engine/store/block_names.h"
#include "engine/store/mailbox.h"
#include "kv/block_manager.h"
#include "kv/block_port.h"
#include "state/state_port.h"
#include "store/store_reader.h"

namespace sluice {

// The states of a hybrid model, without which KV is of no use; both null for others.
struct StateAccess {
  StateSnapshots* snapshots = nullptr;
  StatePort* port = nullptr;
};

class PrefixLoads {
 public:
  struct Parts {
    BlockManager& blocks;
    BlockPort& port;
    BlockNames& names;
    BlockStore& store;
    StoreReader& reader;
    Mailbox& mailbox;
    // What a row of prefill costs at this position; empty: not known yet.
    std::function<std::optional<double>(int64_t position)> ns_per_row;
    std::function<void(BlockId id)> on_stored;  // a block was read from the store
    StateAccess states = {};
  };
  // Of all sequences together. Enough for a disk to reach its rate; few, so that a prompt that is
  // cancelled does not hold much memory for long.
  static constexpr size_t kMaxReads = 8;
  // A file system that does not say for this long what it has is not asked any more.
  static constexpr std::chrono::seconds kLongestCount{1};
  // A sequence that got KV without its states so often reads no more.
  static constexpr int32_t kMaxBadLoads = 3;

  // REQUIRES: as WriteBehind.
  explicit PrefixLoads(Parts parts) : parts_(std::move(parts)) {}

  // A sequence has just got its blocks: looks for what follows its cached tokens. If there may be
  // something, the sequence loads until `pump` has seen the end.
  void begin(Sequence& sequence);
  // A sequence loses its blocks. No effect if it does not load.
  void abandon(const Sequence& sequence);
  // Begins reads as far as there is room, and gives up what takes too long.
  void pump();

  // Called when tokens of a sequence were read and committed.
  std::function<void(Sequence&)> on_progress;

  // Blocks of a sequence that are still to be read: they follow its sealed ones.
  size_t num_left(SequenceId id) const;

  bool is_idle() const { return loads_.empty() && num_reads_ == 0; }
  int64_t num_stored_tokens() const { return num_stored_tokens_; }

 private:
  enum class State : uint8_t { kWaiting, kReading, kRead, kOver };
  struct Block {
    BlockId id;
    BlockPlace place;
    State state = State::kWaiting;
  };
  struct Load {
    Sequence* sequence = nullptr;  // null: abandoned
    std::vector<Block> blocks;     // all that could be read
    std::atomic<size_t> end = 0;   // of these, how many are to be read; any thread reads it
    bool is_counted = false;
    std::chrono::steady_clock::time_point begun_at = std::chrono::steady_clock::now();
    size_t num_wanted = 0;  // `end` before reads failed
    size_t num_begun = 0;   // reads
    size_t num_running = 0;
    size_t num_committed = 0;
  };
  using LoadPtr = std::shared_ptr<Load>;

  std::vector<Block> list_blocks(const Sequence& sequence) const;
  void give_up_old_counts();
  void counted(const LoadPtr& load, size_t num_stored);
  bool is_worth_it(const Load& load, size_t num_blocks) const;
  void read(const LoadPtr& load, size_t index);
  void read_done(const LoadPtr& load, size_t index, bool is_hit);
  void cut(Load& load, size_t end);
  void commit_read(Load& load);
  void drop(Block& block);
  void report(Load& load, size_t num_blocks);
  void finish_if_done(const LoadPtr& load);
  void read_state(const LoadPtr& load);
  void state_done(const LoadPtr& load, BlockId block, int64_t prefix, bool is_hit);
  void finish_with_state(const LoadPtr& load);
  void begin_again(const LoadPtr& load);
  size_t granule_blocks() const;

  Parts parts_;
  std::map<SequenceId, LoadPtr> loads_;
  size_t num_reads_ = 0;  // that run or wait for a thread
  int64_t num_stored_tokens_ = 0;
};

}  // namespace sluice
