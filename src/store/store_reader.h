// StoreReader: reads blocks into memory that is given, several at once, on threads of its own.
//
// For the engine's thread, which goes on with other requests meanwhile. Disks reach their rate only
// with several reads in flight.
// Thread rule: all methods from any thread; the functions of a read are called on the reader's
// threads, or in the destructor, and must not throw.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/block_store.h"
#include "store/job_queue.h"

namespace sluice {

// A block to read. The memory of layers and summaries belongs to the reader until `on_done`.
struct StoreRead {
  BlockPlace place;
  std::vector<int32_t> tokens;                // that the block must have
  std::vector<std::span<std::byte>> layers;   // as LayerTargets
  std::vector<SummaryTarget> summaries = {};  // is_found is passed to on_done
  // Asked before the read begins: false ends it as a miss, for a request that was cancelled. May be
  // empty.
  std::function<bool()> is_wanted = {};
  // Called once. After a miss the memory's bytes are undefined.
  std::function<void(bool is_hit, std::span<const SummaryTarget> summaries)> on_done;
};

class StoreReader {
 public:
  // `store` outlives the reader.
  StoreReader(BlockStore& store, int num_threads);
  // Reads that wait end as misses; those that run are finished.
  ~StoreReader() = default;

  // Never blocks. Reads begin in the order of the calls.
  void submit(StoreRead read);
  // Counts how many of the first keys of a chain are stored, on a thread that reads do not keep
  // waiting, and passes the number to `on_done`, which is called once. Blocks are evicted from a
  // chain's end, so this looks at a few keys alone; a gap is found by reading. Of a model with
  // states they are counted up to the last that has states, too.
  void count(std::vector<StoreKey> chain, std::function<void(size_t)> on_done);
  // Waits until no read waits or runs; false if that takes longer than `limit`.
  bool wait(std::chrono::nanoseconds limit) { return queue_.wait_idle(limit); }
  size_t num_waiting() const { return queue_.num_waiting(); }

 private:
  size_t count_now(std::span<const StoreKey> chain);

  BlockStore& store_;
  // Last: their threads use the store.
  JobQueue queue_;
  JobQueue counts_;
};

}  // namespace sluice
