// The order in which block tables, memory, store and pins hear of an event.
#include "engine/kv/kv_station.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

// While all requests load: until the next look at cancelled ones, and at new ones.
constexpr std::chrono::milliseconds kLongestWait{10};

// How long to wait for a disk: for the next block to be written at the end, and for blocks that
// reads and writes hold.
constexpr std::chrono::seconds kPatience{10};

// Tokens that need a score have to be computed.
int64_t max_hit(const Sequence& sequence) { return sequence.needs_scores() ? 0 : kAnyHit; }

}  // namespace

KvStation::KvStation(const Options& options, KvFollower& follower, const MakeBacking& make_backing,
                     CacheEvents events)
    : has_states_(options.has_states),
      follower_(follower),
      events_(std::move(events)),
      blocks_(with_functions(options)),
      snapshots_(options.snapshots, blocks_, follower),
      backing_(make_backing ? make_backing(blocks_, snapshots_) : std::make_unique<KvBacking>()),
      pins_({.blocks = blocks_,
             .store = *backing_,
             .max_blocks = options.max_pinned_blocks,
             .block_bytes = options.block_bytes,
             .on_host = options.on_host,
             .snapshots = options.has_states ? &snapshots_ : nullptr,
             .snapshot_bytes = options.snapshot_bytes}) {}

// A model with states finds nothing without snapshots.
BlockManagerOptions KvStation::with_functions(const Options& options) {
  BlockManagerOptions blocks = options.blocks;
  blocks.on_discard = [this](BlockId id) {
    follower_.discard(id);
    backing_->forget(id);
  };
  if (events_.exist()) {
    blocks.on_findable = [this](int64_t prefix, int64_t parent, std::span<const int32_t> tokens) {
      events_.findable(prefix, parent, tokens);
    };
    blocks.on_forgotten = [this](int64_t prefix) { events_.forgotten(prefix); };
  }
  if (!options.has_states) return blocks;
  blocks.resumes_after = [this](int64_t prefix) { return snapshots_.contains(prefix); };
  blocks.on_forgotten = [this](int64_t prefix) {
    snapshots_.forgotten(prefix);
    events_.forgotten(prefix);
  };
  return blocks;
}

PrefixMatch KvStation::match(const Sequence& sequence) const {
  return blocks_.match_prefix(sequence.tokens, max_hit(sequence), sequence.salt);
}

bool KvStation::begin(Sequence& sequence, int64_t num_new_tokens) {
  if (!blocks_.try_begin(sequence.kv, sequence.tokens, num_new_tokens, max_hit(sequence),
                         sequence.salt)) {
    return false;
  }
  begun_.emplace(sequence.id, &sequence.kv);
  events_.begun(blocks_.root_id(sequence.salt), sequence.params.cache_salt);
  sequence.set_cached();
  snapshots_.begun(sequence);
  backing_->begin(sequence);
  return true;
}

// No request runs, so only the store can hold blocks that the sequence needs: for its writes, and
// for its reads of requests that were cancelled.
void KvStation::begin_alone(Sequence& sequence) {
  const auto begin = [&] {
    return blocks_.try_begin(sequence.kv, sequence.tokens, sequence.num_tokens(),
                             /*max_hit_tokens=*/0);
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (bool begun = begin(); !begun; begun = begin()) {
    SLUICE_CHECK(backing_->is_busy(), "{} blocks for {} tokens", blocks_.num_free_blocks(),
                 sequence.num_tokens());
    if (std::chrono::steady_clock::now() > deadline) {
      fail(ErrorCode::kIo, "the KV store still reads or writes {} blocks; try again",
           blocks_.num_other_holds());
    }
    backing_->wait(kLongestWait);
    backing_->tend({});
  }
  begun_.emplace(sequence.id, &sequence.kv);
}

// Memory needs to know of decoded rows only, states of all.
void KvStation::commit_alone(Sequence& sequence, int64_t num_rows) {
  blocks_.commit(sequence.kv, sequence.tokens, num_rows);
  if (has_states_) tell_committed(sequence);
}

bool KvStation::reserve(Sequence& sequence, int64_t num_new_tokens) {
  return blocks_.try_reserve(sequence.kv, num_new_tokens);
}

int64_t KvStation::reserve_drafts(Sequence& sequence, int64_t num_drafts) {
  const int64_t num_free = int64_t{blocks_.num_free_blocks()} * blocks_.block_tokens();
  const int64_t room = sequence.kv.num_reserved_tokens() + num_free - sequence.kv.num_tokens() - 1;
  const int64_t num_reserved = std::clamp<int64_t>(num_drafts, 0, std::max<int64_t>(room, 0));
  SLUICE_CHECK(blocks_.try_reserve(sequence.kv, 1 + num_reserved));
  return num_reserved;
}

void KvStation::commit(Sequence& sequence, PassKind kind, int64_t num_rows) {
  blocks_.commit(sequence.kv, sequence.tokens, num_rows);
  tell_committed(sequence);
  const int64_t saved = snapshots_.committed(sequence, kind);
  backing_->committed(sequence, kind);
  if (saved != 0) backing_->state_saved(sequence, saved);
  sequence.set_prompt_done(sequence.kv.num_tokens());
}

void KvStation::tell_committed(const Sequence& sequence) {
  follower_.committed(sequence.id, sequence.kv.num_tokens(), sequence.kv.newest_full());
}

void KvStation::drop_drafts(Sequence& sequence) {
  blocks_.drop_reserved(sequence.kv);
  follower_.drop_drafts(sequence.id, sequence.kv.num_tokens());
}

void KvStation::ended(const Sequence& sequence) {
  if (!sequence.stored.pin.empty())
    pins_.keep(sequence.stored.pin, sequence.kv, sequence.num_prompt_tokens);
}

// Everything keyed by the sequence is dropped before its blocks become free. The state of its last
// block stays, since no further one replaces it.
void KvStation::release(Sequence& sequence) {
  const int64_t last = std::exchange(sequence.states.newest_decoded, 0);
  if (last != 0 && snapshots_.contains(last)) backing_->state_saved(sequence, last);
  follower_.release(sequence.id);
  backing_->release(sequence);
  blocks_.release(sequence.kv);
  events_.released(blocks_.root_id(sequence.salt));
  begun_.erase(sequence.id);
}

// Looked up once for each sequence of a pass: a message has ids, and tables are read where they
// are.
KvView KvStation::view(SequenceId id) const {
  const auto found = begun_.find(id);
  SLUICE_CHECK(found != begun_.end(), "sequence {}", id.value);
  return found->second->view();
}

void KvStation::wait() { backing_->wait(kLongestWait); }

bool KvStation::flush() { return backing_->flush(kPatience); }

}  // namespace sluice
