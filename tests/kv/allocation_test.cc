// Counts operator new in this program: the block manager's decode steps must not allocate on the
// host.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "kv/block_manager.h"
#include "kv/token_lists.h"

namespace {

std::atomic<int64_t> num_news = 0;

}  // namespace

void* operator new(size_t size) {
  ++num_news;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Not inlined: otherwise the compiler sees `free` on what came from `new` and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

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
  const int64_t before = num_news;
  for (int64_t step = 0; step < kNumSteps; ++step) {
    ASSERT_TRUE(manager.try_reserve(kv, 1));
    manager.commit(kv, tokens, 1);
  }
  EXPECT_EQ(num_news, before);
  EXPECT_EQ(manager.stats().num_evicted_blocks, 251);
}

}  // namespace
}  // namespace sluice
