// KvBacking: what keeps KV blocks beyond memory. This class keeps nothing: an engine without a KV
// store has it. KvStore (engine/store) is the other kind.
//
// Owned by KvStation, which tells it of sequences and blocks. Thread rule: the engine's thread, but
// for the members that say otherwise.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attention/pass_kind.h"
#include "core/ids.h"
#include "engine/sequence.h"
#include "sluice/request_output.h"
#include "store/store_key.h"

namespace sluice {

class KvBacking {
 public:
  virtual ~KvBacking() = default;

  // Whether there is a store, and whether it is written. Neither ever changes; any thread.
  virtual bool exists() const { return false; }
  virtual bool writes() const { return false; }

  // ---- The life of sequences and blocks.

  // A sequence has just got its blocks; it may load now (StoreSlot::is_loading).
  virtual void begin(Sequence& /*sequence*/) {}
  // A sequence loses its blocks.
  virtual void release(Sequence& /*sequence*/) {}
  // Rows of a sequence were committed.
  virtual void committed(Sequence& /*sequence*/, PassKind /*kind*/) {}
  // A snapshot was taken after a prefix that ends with the sequence's newest full block.
  virtual void state_saved(const Sequence& /*sequence*/, int64_t /*prefix*/) {}
  // A block's contents are gone.
  virtual void forget(BlockId /*id*/) {}

  // ---- Between steps.

  // Takes what was read and written since, and begins more. `on_progress` is called for each
  // sequence of whose prompt something was read; it may be empty. Errors: kDevice.
  using OnProgress = std::function<void(Sequence&)>;
  virtual void tend(const OnProgress& /*on_progress*/) {}
  // Waits until `tend` has something to take, at most this long.
  virtual void wait(std::chrono::nanoseconds /*limit*/) {}
  // Whether anything is left to do for `tend`.
  virtual bool is_busy() const { return false; }
  // Waits until all blocks are kept that shall be; false if none was in `patience`.
  virtual bool flush(std::chrono::nanoseconds /*patience*/) { return true; }

  // ---- Blocks and their keys.

  // Whether the store has this block; and the key of a block that has a name.
  virtual bool is_stored(BlockId /*id*/) const { return false; }
  virtual std::optional<StoreKey> key_of(BlockId /*id*/) const { return std::nullopt; }
  // The keys of blocks that are evicted last.
  virtual void set_pinned(std::set<StoreKey> /*keys*/) {}
  // Blocks of a running sequence that are being read, or will be: those after its sealed ones.
  virtual size_t num_loading_blocks(SequenceId /*id*/) const { return 0; }

  // ---- Reports.

  // Adds its counts.
  virtual void read_stats(EngineStats& /*stats*/) const {}
  // What went wrong so far, one line each; any thread.
  virtual std::vector<std::string> warnings() const { return {}; }
  virtual size_t num_warnings() const { return 0; }
};

}  // namespace sluice
