// SequenceKv alone: valid counts of blocks (invariant 5) while a sequence is reserved, prefilled
// and decoded.
#include "kv/sequence_kv.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "kv/block_manager.h"
#include "kv/token_lists.h"

namespace sluice {
namespace {

constexpr int32_t kBlock = 16;

BlockManagerOptions options(int32_t num_blocks) {
  return {.num_blocks = num_blocks, .block_tokens = kBlock, .hash_seed = 1};
}

std::vector<int32_t> valid_counts(const SequenceKv& kv) {
  std::vector<int32_t> counts;
  for (const SequenceBlock& block : kv.blocks()) counts.push_back(block.num_valid_tokens);
  return counts;
}

TEST(SequenceKv, HoldsNothingBeforeItBegins) {
  const SequenceKv kv;
  EXPECT_FALSE(kv.begun());
  EXPECT_FALSE(kv.prefill_done());
  EXPECT_EQ(kv.num_tokens(), 0);
  EXPECT_TRUE(kv.blocks().empty());
}

// Counts that would be wrong if they were derived from the sequence's length: prompts around a
// block boundary, then decoding one token at a time past three boundaries. The last sampled token
// is in the token list but not in the KV.
TEST(SequenceKv, CountsAcrossSeveralBoundaries) {
  for (int64_t prompt : {1, 15, 16, 17, 31, 32, 33, 48, 55}) {
    SCOPED_TRACE(prompt);
    BlockManager manager(options(16));
    SequenceKv kv;
    Tokens tokens = counting(0, prompt);
    ASSERT_TRUE(manager.try_begin(kv, tokens, prompt));
    manager.commit(kv, tokens, prompt);
    EXPECT_TRUE(kv.prefill_done());
    for (int64_t step = 0; step < 3 * kBlock + 2; ++step) {
      tokens.push_back(1000 + static_cast<int32_t>(step));
      ASSERT_EQ(kv.num_tokens(), std::ssize(tokens) - 1);
      ASSERT_TRUE(manager.try_reserve(kv, 1));
      manager.commit(kv, tokens, 1);

      std::vector<int32_t> expected(static_cast<size_t>(std::ssize(tokens) / kBlock), kBlock);
      if (std::ssize(tokens) % kBlock != 0) {
        expected.push_back(static_cast<int32_t>(std::ssize(tokens) % kBlock));
      }
      ASSERT_EQ(valid_counts(kv), expected);
      ASSERT_EQ(kv.num_sealed_blocks(), std::ssize(tokens) / kBlock);
      ASSERT_EQ(kv.prefill_tokens(), prompt);
    }
  }
}

TEST(SequenceKv, ReservedBlocksHaveNoValidToken) {
  BlockManager manager(options(8));
  SequenceKv kv;
  const Tokens tokens = counting(0, 50);
  ASSERT_TRUE(manager.try_begin(kv, tokens, 50));
  EXPECT_EQ(valid_counts(kv), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(kv.num_reserved_tokens(), 64);
  manager.commit(kv, tokens, 20);
  EXPECT_EQ(valid_counts(kv), (std::vector<int32_t>{16, 4, 0, 0}));
  EXPECT_EQ(kv.num_tokens(), 20);
  EXPECT_FALSE(kv.prefill_done());
  manager.commit(kv, tokens, 30);
  EXPECT_EQ(valid_counts(kv), (std::vector<int32_t>{16, 16, 16, 2}));
  EXPECT_TRUE(kv.prefill_done());
}

}  // namespace
}  // namespace sluice
