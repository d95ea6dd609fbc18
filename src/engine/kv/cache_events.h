// CacheEvents: turns what the prefix cache gains and loses into events for routers.
//
// Part of KvStation, which tells it of sequences and passes on what its BlockManager says. Blocks
// get names of their own, chains of SHA-256 over salt and tokens: the prefix cache's hashes differ
// between processes, and the KV store's names depend on the weights (docs/adr/0040). Without a sink
// this class does nothing. Thread rule: the engine's thread, but for stats and endpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "events/event_sink.h"
#include "kv/block_manager.h"
#include "sluice/request_output.h"
#include "store/store_key.h"

namespace sluice {

// What the names of all blocks begin with. Equal for all engines with blocks of this size.
StoreKey event_root(int32_t block_tokens, std::string_view salt);

// What an event has of a name: its last 8 bytes, highest first.
uint64_t event_hash(const StoreKey& name);

class CacheEvents {
 public:
  CacheEvents() = default;  // tells nobody
  CacheEvents(std::unique_ptr<EventSink> sink, int32_t block_tokens, KvMedium medium);

  bool exist() const { return sink_ != nullptr; }

  // A sequence with this salt has got its blocks; and loses them. `root`: the id of the empty
  // prefix of the salt. Between the two, prefixes with this root may become findable.
  void begun(int64_t root, std::string_view salt);
  void released(int64_t root);

  // As BlockManagerOptions::on_findable and on_forgotten.
  void findable(int64_t prefix, int64_t parent, std::span<const int32_t> tokens);
  void forgotten(int64_t prefix);

  // Gives the sink what came since the last call, as one batch; nothing if nothing did. If too much
  // waits there, all of that is replaced by AllBlocksCleared and what is findable now.
  void flush(const BlockManager& blocks);

  // Empty without a sink. Events are sent after the step that made them.
  std::optional<KvEventStats> stats() const;
  std::vector<std::string> endpoints() const;

 private:
  struct Name {
    StoreKey key;
    std::optional<uint64_t> parent;  // the hash; empty: a first block
    std::string salt;                // of a first block
  };
  struct Root {
    StoreKey key;
    std::string salt;
    int64_t num_sequences = 0;
  };

  Name name_after(int64_t parent, std::span<const int32_t> tokens) const;
  void add_stored(const Name& name, std::span<const int32_t> tokens,
                  std::vector<CacheEvent>& events);
  CacheEventBatch whole(const BlockManager& blocks);

  std::unique_ptr<EventSink> sink_;  // null: nobody listens
  int32_t block_tokens_ = 0;
  KvMedium medium_ = KvMedium::kGpu;
  std::unordered_map<int64_t, Root> roots_;  // of running sequences, and that without a salt
  std::unordered_map<int64_t, Name> names_;  // of findable prefixes, by id
  // Prefixes with a hash: two if one of them is not found any more, since blocks before it are
  // gone, and its tokens were computed again.
  std::unordered_map<uint64_t, int32_t> num_prefixes_;
  std::vector<CacheEvent> pending_;
};

}  // namespace sluice
