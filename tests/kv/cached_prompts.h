// A small BlockManager and prompts that leave their blocks in its cache, for the tests of kv/.
#pragma once

#include <gtest/gtest.h>

#include "kv/block_manager.h"
#include "kv/token_lists.h"

namespace sluice {

inline constexpr int32_t kBlock = 16;

inline BlockManagerOptions options(int32_t num_blocks) {
  return {.num_blocks = num_blocks, .block_tokens = kBlock, .hash_seed = 1};
}

// Begins with blocks for the tokens that are not cached, and computes those.
inline void prefill(BlockManager& manager, SequenceKv& kv, const Tokens& tokens) {
  const int64_t num_new = std::ssize(tokens) - manager.match_prefix(tokens).num_tokens;
  ASSERT_TRUE(manager.try_begin(kv, tokens, num_new));
  manager.commit(kv, tokens, num_new);
}

// Leaves the whole blocks of `tokens` in the cache.
inline void cache(BlockManager& manager, const Tokens& tokens) {
  SequenceKv kv;
  prefill(manager, kv, tokens);
  manager.release(kv);
}

inline void expect_counts(const BlockManager& manager, int32_t num_free, int32_t num_cached) {
  EXPECT_EQ(manager.num_free_blocks(), num_free);
  EXPECT_EQ(manager.num_cached_blocks(), num_cached);
  EXPECT_EQ(manager.num_used_blocks(), manager.num_blocks() - num_free);
}

}  // namespace sluice
