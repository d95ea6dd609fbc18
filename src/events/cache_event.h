// CacheEvent: what a router is told of the blocks of an engine.
//
// Made by engine/kv/cache_events, encoded by event_payload, sent by event_publisher. The events and
// their fields are vLLM's (docs/kv_events.md). Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace sluice {

// The memory that has the blocks.
enum class KvMedium : uint8_t { kGpu, kCpu };

// Blocks that prompts can find from now on; each continues the one before it.
struct BlocksStored {
  std::vector<uint64_t> hashes;    // at least one
  std::optional<uint64_t> parent;  // the hash of the block before the first; empty: a prompt begins
  std::vector<int32_t> token_ids;  // of all of them, block_tokens each
  int32_t block_tokens = 0;
  KvMedium medium = KvMedium::kGpu;
  // The cache salt of the requests that can find them. Only without a parent: the blocks after the
  // first are known by it.
  std::string salt = {};

  bool operator==(const BlocksStored&) const = default;
};

// Blocks that no prompt can find any more.
struct BlocksRemoved {
  std::vector<uint64_t> hashes;
  KvMedium medium = KvMedium::kGpu;

  bool operator==(const BlocksRemoved&) const = default;
};

// Whatever was stored before this event counts as removed.
struct AllBlocksCleared {
  bool operator==(const AllBlocksCleared&) const = default;
};

using CacheEvent = std::variant<BlocksStored, BlocksRemoved, AllBlocksCleared>;

// The events of a step, in order.
struct CacheEventBatch {
  double time_s = 0;  // Unix time
  std::vector<CacheEvent> events;
};

}  // namespace sluice
