// Counts operator new in this program: the block manager's decode steps must not allocate on the
// host.
#include <gtest/gtest.h>

#include "kv/block_manager.h"
#include "kv/token_lists.h"
#include "support/new_count.h"

namespace sluice {
namespace {

// 4,000 decode steps over 250 block boundaries, with every block taken by eviction and sealed.
TEST(Allocation, DecodeStepsAllocateNothing) {
  constexpr int32_t kBlock = 16;
  constexpr int64_t kNumSteps = 4000;
  BlockManager manager({.num_blocks = 300, .block_tokens = kBlock, .hash_seed = 1});
  SequenceKv kv;
  const Tokens old = counting(0, 300 * kBlock);
  ASSERT_TRUE(manager.try_begin(kv, old, std::ssize(old)));
  manager.commit(kv, old, std::ssize(old));
  manager.release(
      kv);  // leaves all blocks cached, and the block list's capacity for the next begin

  const Tokens tokens = counting(100000, kNumSteps + 10);
  ASSERT_TRUE(manager.try_begin(kv, std::span(tokens).first(10), 10));
  manager.commit(kv, tokens, 10);
  const int64_t before = testing::num_news();
  for (int64_t step = 0; step < kNumSteps; ++step) {
    ASSERT_TRUE(manager.try_reserve(kv, 1));
    manager.commit(kv, tokens, 1);
  }
  EXPECT_EQ(testing::num_news(), before);
  EXPECT_EQ(manager.stats().num_evicted_blocks, 251);
}

}  // namespace
}  // namespace sluice
