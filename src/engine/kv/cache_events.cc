// Names, and events that continue each other.
#include "engine/kv/cache_events.h"

#include <chrono>
#include <utility>
#include <variant>

#include "core/error.h"

namespace sluice {
namespace {

// The root without a salt stays: sequences that run alone have none, and begin unseen.
constexpr int64_t kNoSalt = 0;

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

// Not the fingerprint of the weights: what routers ask is which replica has a prompt, and replicas
// on other machines, whose bits may differ, shall give the same answer.
StoreKey event_root(int32_t block_tokens, std::string_view salt) {
  FingerprintInputs inputs;
  inputs.model = {{"names", "KV events"}};
  inputs.block_tokens = block_tokens;
  return root_key(make_fingerprint(inputs), salt);
}

uint64_t event_hash(const StoreKey& name) {
  uint64_t hash = 0;
  for (const std::byte byte : std::span(name.bytes).last<8>()) {
    hash = hash << 8 | static_cast<uint64_t>(byte);
  }
  return hash;
}

CacheEvents::CacheEvents(std::unique_ptr<EventSink> sink, int32_t block_tokens, KvMedium medium)
    : sink_(std::move(sink)), block_tokens_(block_tokens), medium_(medium) {
  roots_[kNoSalt] = {.key = event_root(block_tokens_, "")};
}

// The salt is known here alone: the index has a number that this process has drawn for it.
void CacheEvents::begun(int64_t root, std::string_view salt) {
  if (!exist() || root == kNoSalt) return;
  Root& entry = roots_[root];
  if (entry.num_sequences++ > 0) return;
  entry.key = event_root(block_tokens_, salt);
  entry.salt = salt;
}

void CacheEvents::released(int64_t root) {
  if (!exist() || root == kNoSalt) return;
  const auto found = roots_.find(root);
  SLUICE_CHECK(found != roots_.end(), "root {}", root);
  if (--found->second.num_sequences == 0) roots_.erase(found);
}

// The sequence that made it findable holds all blocks before it, so their names are known.
CacheEvents::Name CacheEvents::name_after(int64_t parent, std::span<const int32_t> tokens) const {
  if (parent <= 0) {
    const Root& root = roots_.at(parent);
    return {.key = next_key(root.key, tokens), .parent = {}, .salt = root.salt};
  }
  const StoreKey& before = names_.at(parent).key;
  return {.key = next_key(before, tokens), .parent = event_hash(before), .salt = {}};
}

// The second prefix of a hash says nothing new: a router knows hashes, not ids.
void CacheEvents::findable(int64_t prefix, int64_t parent, std::span<const int32_t> tokens) {
  if (!exist()) return;
  const Name& name = names_[prefix] = name_after(parent, tokens);
  if (++num_prefixes_[event_hash(name.key)] == 1) add_stored(name, tokens, pending_);
}

// Evicted blocks follow each other in order of use, so their events are one where nothing is stored
// between them.
void CacheEvents::forgotten(int64_t prefix) {
  if (!exist()) return;
  const auto found = names_.find(prefix);
  SLUICE_CHECK(found != names_.end(), "prefix {}", prefix);
  const uint64_t hash = event_hash(found->second.key);
  names_.erase(found);
  const auto count = num_prefixes_.find(hash);
  if (--count->second > 0) return;
  num_prefixes_.erase(count);
  auto* last = pending_.empty() ? nullptr : std::get_if<BlocksRemoved>(&pending_.back());
  if (last == nullptr) last = &std::get<BlocksRemoved>(pending_.emplace_back(BlocksRemoved{}));
  last->medium = medium_;
  last->hashes.push_back(hash);
}

// Blocks of one prompt become findable one after the other: they are one event.
void CacheEvents::add_stored(const Name& name, std::span<const int32_t> tokens,
                             std::vector<CacheEvent>& events) {
  auto* last = events.empty() ? nullptr : std::get_if<BlocksStored>(&events.back());
  if (last == nullptr || !name.parent || last->hashes.back() != *name.parent) {
    last = &std::get<BlocksStored>(events.emplace_back(BlocksStored{.parent = name.parent,
                                                                    .block_tokens = block_tokens_,
                                                                    .medium = medium_,
                                                                    .salt = name.salt}));
  }
  last->hashes.push_back(event_hash(name.key));
  last->token_ids.insert(last->token_ids.end(), tokens.begin(), tokens.end());
}

// Names are made when prefixes become findable, so nothing is hashed here; what this costs are the
// token ids, four bytes for each token of the cache.
CacheEventBatch CacheEvents::whole(const BlockManager& blocks) {
  CacheEventBatch batch{.time_s = unix_seconds(), .events = {AllBlocksCleared{}}};
  std::unordered_map<uint64_t, bool> is_told;
  for (const FindablePrefix& prefix : blocks.findable_prefixes()) {
    const Name& name = names_.at(prefix.id);
    if (!std::exchange(is_told[event_hash(name.key)], true)) {
      add_stored(name, blocks.tokens(prefix.block), batch.events);
    }
  }
  return batch;
}

// The pending events are not lost with a batch that is refused: what they said is in `whole`.
void CacheEvents::flush(const BlockManager& blocks) {
  if (pending_.empty()) return;
  CacheEventBatch batch{.time_s = unix_seconds(), .events = std::move(pending_)};
  pending_.clear();
  if (!sink_->try_publish(batch)) sink_->replace_waiting(whole(blocks));
}

std::optional<KvEventStats> CacheEvents::stats() const {
  if (!exist()) return std::nullopt;
  const EventCounts counts = sink_->counts();
  return KvEventStats{.num_sent = counts.num_sent, .num_dropped = counts.num_dropped};
}

std::vector<std::string> CacheEvents::endpoints() const {
  return sink_ ? sink_->endpoints() : std::vector<std::string>();
}

}  // namespace sluice
