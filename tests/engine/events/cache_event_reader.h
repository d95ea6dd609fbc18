// A sink that keeps events, and a reader that follows them as a router does.
//
// Used by the tests of CacheEvents. Thread rule: host thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kv/cache_events.h"
#include "events/event_sink.h"

namespace sluice::testing {

// What a prompt begins with, and the salt of its request.
struct SaltedPrefix {
  std::string salt;
  std::vector<int32_t> tokens;  // whole blocks
};

// The hash of its last block, made from the first token on.
inline uint64_t hash_of(const SaltedPrefix& prefix, int32_t block_tokens) {
  return event_hash(
      chain_keys(event_root(block_tokens, prefix.salt), prefix.tokens, block_tokens).back());
}

// What a router knows after all events so far. Every hash must be that of the tokens that came with
// it and before it, every removed block be there, and no stored one.
class EventReader {
 public:
  void read(const CacheEventBatch& batch) {
    EXPECT_FALSE(batch.events.empty()) << "an empty batch";
    for (const CacheEvent& event : batch.events) {
      std::visit([this](const auto& held) { take(held); }, event);
    }
  }
  std::set<uint64_t> hashes() const {
    std::set<uint64_t> hashes;
    for (const auto& [hash, prefix] : prefixes_) hashes.insert(hash);
    return hashes;
  }
  int64_t num_stored() const { return num_stored_; }
  int64_t num_removed() const { return num_removed_; }
  int64_t num_cleared() const { return num_cleared_; }

 private:
  void take(const BlocksStored& event) {
    const auto block_tokens = static_cast<size_t>(event.block_tokens);
    ASSERT_EQ(event.token_ids.size(), event.hashes.size() * block_tokens);
    ASSERT_FALSE(event.hashes.empty());
    SaltedPrefix prefix{.salt = event.salt};
    if (event.parent) {
      ASSERT_TRUE(known_.contains(*event.parent)) << "a parent that was never there";
      ASSERT_TRUE(event.salt.empty()) << "its first block has it";
      prefix = known_.at(*event.parent);
    }
    for (size_t i = 0; i < event.hashes.size(); ++i) {
      const auto first = event.token_ids.begin() + static_cast<std::ptrdiff_t>(i * block_tokens);
      prefix.tokens.insert(prefix.tokens.end(), first,
                           first + static_cast<std::ptrdiff_t>(block_tokens));
      EXPECT_EQ(event.hashes[i], hash_of(prefix, event.block_tokens));
      EXPECT_TRUE(prefixes_.emplace(event.hashes[i], prefix).second) << "stored twice";
      known_[event.hashes[i]] = prefix;
      ++num_stored_;
    }
  }
  void take(const BlocksRemoved& event) {
    ASSERT_FALSE(event.hashes.empty());
    for (const uint64_t hash : event.hashes) {
      EXPECT_EQ(prefixes_.erase(hash), 1U) << "removed, but not there";
      ++num_removed_;
    }
  }
  void take(const AllBlocksCleared&) {
    prefixes_.clear();
    ++num_cleared_;
  }

  std::map<uint64_t, SaltedPrefix> prefixes_;
  std::map<uint64_t, SaltedPrefix> known_;  // all that ever were
  int64_t num_stored_ = 0;
  int64_t num_removed_ = 0;
  int64_t num_cleared_ = 0;
};

// Keeps batches until the test reads them. `refuses` says when too much waits; empty: never.
class KeepingSink final : public EventSink {
 public:
  struct Kept {
    std::vector<CacheEventBatch> batches;
    std::function<bool()> refuses;
    int64_t num_sent = 0;
    int64_t num_dropped = 0;

    // Everything so far reaches the reader.
    void deliver(EventReader& reader) {
      for (const CacheEventBatch& batch : std::exchange(batches, {})) {
        num_sent += std::ssize(batch.events);
        reader.read(batch);
      }
    }
  };
  explicit KeepingSink(Kept& kept) : kept_(kept) {}

  bool try_publish(CacheEventBatch& batch) override {
    if (kept_.refuses && kept_.refuses()) return false;
    kept_.batches.push_back(std::move(batch));
    return true;
  }
  void replace_waiting(CacheEventBatch batch) override {
    for (const CacheEventBatch& dropped : std::exchange(kept_.batches, {})) {
      kept_.num_dropped += std::ssize(dropped.events);
    }
    kept_.batches.push_back(std::move(batch));
  }
  EventCounts counts() const override {
    return {.num_sent = kept_.num_sent, .num_dropped = kept_.num_dropped};
  }

 private:
  Kept& kept_;
};

}  // namespace sluice::testing
