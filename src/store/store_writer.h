// StoreWriter: writes blocks behind the engine, on one thread of its own.
//
// For the engine's thread, which offers blocks as they are sealed and must never wait for a disk.
// Thread rule: all methods from any thread; `on_done` is called on the writer's thread, or in the
// destructor, and must not throw.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/block_store.h"
#include "store/job_queue.h"

namespace sluice {

// A block to write. Whoever offers it keeps the memory of layers and summaries unchanged until
// `on_done`, by holding the block in the host tier.
struct StoreWrite {
  BlockPlace place;
  std::vector<int32_t> tokens;
  std::vector<std::span<const std::byte>> layers;  // as LayerTargets
  std::vector<SummarySource> summaries = {};
  std::function<void(WriteResult)> on_done = {};  // may be empty
};

class StoreWriter {
 public:
  // `store` outlives the writer. At most `max_waiting` blocks wait beside the one that is written.
  StoreWriter(BlockStore& store, size_t max_waiting);
  // Blocks that wait end with kDropped; drain() first to keep them.
  ~StoreWriter() = default;

  // Takes a block; on_done is called once. False, without a call, if too many wait: the block is
  // skipped and counted. Never blocks, and opens no file.
  bool offer(StoreWrite write);
  // Waits until all blocks taken are written or have failed; false if that takes longer than
  // `limit`.
  bool drain(std::chrono::nanoseconds limit) { return queue_.wait_idle(limit); }

  int64_t num_skipped() const { return num_skipped_; }
  size_t num_waiting() const { return queue_.num_waiting(); }

 private:
  BlockStore& store_;
  std::atomic<int64_t> num_skipped_ = 0;
  JobQueue queue_;  // last: its thread uses the others
};

}  // namespace sluice
