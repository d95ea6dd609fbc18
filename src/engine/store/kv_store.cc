// Names of sealed blocks, and one loop for both directions.
#include "engine/store/kv_store.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// A disk reaches its rate with four reads in flight. The page cache is as fast as the processors
// that copy from it and hash, of which half are left to the engine.
int num_read_threads() {
  constexpr int kMost = static_cast<int>(PrefixLoads::kMaxReads);
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 4, kMost);
}

// A block on its way to host memory sends no letter.
constexpr std::chrono::milliseconds kLook{1};

StoreFiles& system_files() {
  static StoreFiles files;
  return files;
}

}  // namespace

KvStore::KvStore(const KvStoreOptions& options, Parts parts)
    : blocks_(parts.blocks),
      stores_decoded_(parts.stores_decoded),
      min_tokens_(options.min_tokens),
      port_(std::move(parts.port)),
      names_(parts.format, parts.blocks.num_blocks()),
      store_(store_options(options, parts.format),
             parts.files != nullptr ? *parts.files : system_files()),
      reader_(store_, num_read_threads()),
      writer_(store_, WriteBehind::kMaxHeld + StateWrites::kMaxHeld),
      loads_({.blocks = blocks_,
              .port = *port_,
              .names = names_,
              .store = store_,
              .reader = reader_,
              .mailbox = mailbox_,
              .ns_per_row = std::move(parts.ns_per_row),
              .on_stored =
                  [this](BlockId id) {
                    if (writes_) writes_->set_stored(id);
                  },
              .states = parts.states}) {
  if (options.mode == KvStoreMode::kReadOnly) return;
  writes_.emplace(WriteBehind::Parts{
      .blocks = blocks_, .port = *port_, .names = names_, .writer = writer_, .mailbox = mailbox_});
  if (parts.states.port == nullptr) return;
  state_writes_.emplace(StateWrites::Parts{.blocks = blocks_,
                                           .names = names_,
                                           .writes = *writes_,
                                           .snapshots = *parts.states.snapshots,
                                           .states = *parts.states.port,
                                           .writer = writer_,
                                           .mailbox = mailbox_});
}

// Warnings come from the threads of the store; whoever runs the engine asks for them.
BlockStoreOptions KvStore::store_options(const KvStoreOptions& options, const StoreFormat& format) {
  const bool is_read_only = options.mode == KvStoreMode::kReadOnly;
  return {.dir = *options.dir,
          .max_bytes = options.max_bytes.value_or(kDefaultKvStoreBytes),
          .mode = is_read_only ? StoreMode::kReadOnly : StoreMode::kReadWrite,
          .format = format,
          .on_warning = [this](const std::string& text) {
            const std::lock_guard lock(warnings_mutex_);
            warnings_.push_back(text);
            num_warnings_ = warnings_.size();
          }};
}

// The next time it gets blocks, others may have other names.
void KvStore::release(Sequence& sequence) {
  loads_.abandon(sequence);
  sequence.stored.is_loading = false;
  sequence.stored.num_named_blocks = 0;
}

// Pins are stored whatever their length is.
bool KvStore::is_wanted(const Sequence& sequence) const {
  return sequence.num_prompt_tokens >= min_tokens_ || !sequence.stored.pin.empty();
}

// Blocks of short prompts get names, too: a longer prompt may go on after them.
void KvStore::committed(Sequence& sequence, PassKind kind) {
  const auto num_sealed = static_cast<size_t>(sequence.kv.num_sealed_blocks());
  for (size_t& i = sequence.stored.num_named_blocks; i < num_sealed; ++i) {
    const BlockId id = sequence.kv.blocks()[i].id;
    if (!names_.find(id)) name(sequence, i, kind);
    if (writes_ && names_.find(id) && is_wanted(sequence)) writes_->add(id);
  }
}

// A block that was found in the cache without a name has none.
void KvStore::name(const Sequence& sequence, size_t index, PassKind kind) {
  const auto block_tokens = static_cast<size_t>(blocks_.block_tokens());
  const BlockId id = sequence.kv.blocks()[index].id;
  if (static_cast<int64_t>(index * block_tokens) < sequence.kv.num_cached_tokens()) return;
  if (!blocks_.is_findable(id) || (!kind.is_prefill && !stores_decoded_)) return;
  const auto tokens = std::span(sequence.tokens).subspan(index * block_tokens, block_tokens);
  const auto place = names_.place_after(sequence.kv, index, sequence.params.cache_salt, tokens);
  if (place) names_.set(id, *place);
}

std::optional<StoreKey> KvStore::key_of(BlockId id) const {
  const std::optional<BlockPlace>& place = names_.find(id);
  return place ? std::optional(place->key) : std::nullopt;
}

void KvStore::state_saved(const Sequence& sequence, int64_t prefix) {
  const BlockId block = sequence.kv.newest_full();
  if (state_writes_ && is_wanted(sequence) && names_.find(block)) state_writes_->add(block, prefix);
}

void KvStore::forget(BlockId id) {
  names_.forget(id);
  if (writes_) writes_->forget(id);
}

// Letters first: they make room for more.
void KvStore::tend(const OnProgress& on_progress) {
  loads_.on_progress = [&](Sequence& sequence) {
    if (on_progress) on_progress(sequence);
  };
  mailbox_.take();
  loads_.pump();
  if (writes_) writes_->pump();
  if (state_writes_) state_writes_->pump();
}

bool KvStore::writes_wait() const {
  return (writes_ && !writes_->is_idle()) || (state_writes_ && !state_writes_->is_idle());
}

bool KvStore::is_busy() const { return !loads_.is_idle() || writes_wait(); }

// Each block that was written gives the disk new patience. Loads go on meanwhile.
bool KvStore::flush(std::chrono::nanoseconds patience) {
  Clock::time_point deadline = Clock::now() + patience;
  for (tend({}); writes_wait(); tend({})) {
    if (mailbox_.wait(kLook)) {
      deadline = Clock::now() + patience;
    } else if (Clock::now() > deadline) {
      return false;
    }
  }
  return true;
}

void KvStore::read_stats(EngineStats& stats) const {
  const StoreStats of_store = store_.stats();
  stats.num_stored_tokens = loads_.num_stored_tokens();
  stats.store_read_bytes = static_cast<int64_t>(of_store.read_bytes);
  stats.store_written_bytes = static_cast<int64_t>(of_store.written_bytes);
  stats.num_store_blocks_written = of_store.num_written;
  stats.num_store_blocks_skipped = writes_ ? writes_->num_skipped() : 0;
  stats.num_store_bad_files = of_store.num_bad;
  stats.num_store_write_errors = of_store.num_failed;
  stats.store_read_bytes_per_second = of_store.read_bytes_per_second;
}

std::vector<std::string> KvStore::warnings() const {
  const std::lock_guard lock(warnings_mutex_);
  return warnings_;
}

}  // namespace sluice
