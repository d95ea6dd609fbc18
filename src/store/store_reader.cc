// The queue of reads has no limit: each has memory of its own, which is limited.
#include "store/store_reader.h"

#include <algorithm>
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
    : store_(store),
      queue_(num_threads, std::numeric_limits<size_t>::max()),
      counts_(1, std::numeric_limits<size_t>::max()) {}

void StoreReader::submit(StoreRead read) {
  auto job = std::make_shared<StoreRead>(std::move(read));
  queue_.push(
      {.run = [this, job] { read_now(store_, *job); }, .drop = [job] { job->on_done(false, {}); }});
}

// No sequence goes on from KV without states.
size_t StoreReader::count_now(std::span<const StoreKey> chain) {
  const auto is_stored = [&](const StoreKey& key) { return store_.contains(key); };
  const auto end = std::partition_point(chain.begin(), chain.end(), is_stored);
  auto count = static_cast<size_t>(end - chain.begin());
  if (store_.format().states.num_layers == 0) return count;
  while (count > 0 && !store_.contains(chain[count - 1], StoredKind::kState)) --count;
  return count;
}

void StoreReader::count(std::vector<StoreKey> chain, std::function<void(size_t)> on_done) {
  const auto job = [this, chain = std::move(chain), on_done] { on_done(count_now(chain)); };
  counts_.push({.run = job, .drop = [on_done] { on_done(0); }});
}

}  // namespace sluice
