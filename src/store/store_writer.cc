// The block's own result, or kDropped, reaches on_done exactly once.
#include "store/store_writer.h"

#include <memory>
#include <new>
#include <utility>

namespace sluice {
namespace {

WriteResult write_now(BlockStore& store, const StoreWrite& write) {
  try {
    return store.write({.place = write.place,
                        .tokens = write.tokens,
                        .layers = write.layers,
                        .summaries = write.summaries});
  } catch (const std::bad_alloc&) {  // nothing was written under the block's name
    return WriteResult::kFailed;
  }
}

}  // namespace

StoreWriter::StoreWriter(BlockStore& store, size_t max_waiting)
    : store_(store), queue_(1, max_waiting) {}

// Shared by the two functions of the job, of which one is called.
bool StoreWriter::offer(StoreWrite write) {
  auto job = std::make_shared<const StoreWrite>(std::move(write));
  const auto end = [job](WriteResult result) {
    if (job->on_done) job->on_done(result);
  };
  const bool is_taken = queue_.push({.run = [this, job, end] { end(write_now(store_, *job)); },
                                     .drop = [end] { end(WriteResult::kDropped); }});
  if (!is_taken) ++num_skipped_;
  return is_taken;
}

}  // namespace sluice
