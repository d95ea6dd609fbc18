// The queue of reads has no limit: each has memory of its own, which is limited.
#include "store/store_reader.h"

#include <limits>
#include <memory>
#include <new>
#include <utility>

namespace sluice {
namespace {

void read_now(BlockStore& store, StoreRead& read) {
  bool is_hit = false;
  try {
    is_hit = (!read.is_wanted || read.is_wanted()) && store.read({.place = read.place,
                                                                  .tokens = read.tokens,
                                                                  .layers = read.layers,
                                                                  .summaries = read.summaries});
  } catch (const std::bad_alloc&) {  // a miss: the tokens are computed instead
  }
  read.on_done(is_hit, read.summaries);
}

}  // namespace

StoreReader::StoreReader(BlockStore& store, int num_threads)
    : store_(store), queue_(num_threads, std::numeric_limits<size_t>::max()) {}

void StoreReader::submit(StoreRead read) {
  auto job = std::make_shared<StoreRead>(std::move(read));
  queue_.push(
      {.run = [this, job] { read_now(store_, *job); }, .drop = [job] { job->on_done(false, {}); }});
}

}  // namespace sluice
