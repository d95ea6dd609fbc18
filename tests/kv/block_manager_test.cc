// BlockManager by example: prefix hits at every edge, eviction order, exhaustion, twins, misuse.
// Random operations against a naive model are in block_manager_property_test.cc.
#include "kv/block_manager.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/cached_prompts.h"

namespace sluice {
namespace {

uint64_t constant_hash(uint64_t, std::span<const int32_t>) { return 5; }

std::vector<int32_t> ids_of(const SequenceKv& kv) {
  std::vector<int32_t> ids;
  for (const SequenceBlock& block : kv.blocks()) ids.push_back(block.id.value);
  return ids;
}

// (prompt length, tokens that may come from a cache that holds the whole prompt): whole blocks
// only, and never the last token.
TEST(PrefixCaching, HitsAroundBlockBoundaries) {
  const std::vector<std::pair<int64_t, int64_t>> cases = {
      {1, 0}, {15, 0}, {16, 0}, {17, 16}, {31, 16}, {32, 16}, {33, 32}, {48, 32}, {49, 48}};
  for (const auto& [length, hit] : cases) {
    SCOPED_TRACE(length);
    BlockManager manager(options(8));
    cache(manager, counting(0, length));
    EXPECT_EQ(manager.match_prefix(counting(0, length)).num_tokens, hit);
    EXPECT_EQ(manager.match_prefix(counting(0, length)).num_free_blocks, hit / kBlock);
    SequenceKv kv;
    prefill(manager, kv, counting(0, length));
    EXPECT_EQ(kv.num_cached_tokens(), hit);
    EXPECT_EQ(kv.num_tokens(), length);
    EXPECT_EQ(manager.stats().num_hit_tokens, hit);
    EXPECT_EQ(manager.stats().num_prompt_tokens, 2 * length);
    const std::vector<const SequenceKv*> live = {&kv};
    manager.check_invariants(live);
  }
}

TEST(PrefixCaching, MatchesTheCommonPartOnly) {
  BlockManager manager(options(16));
  cache(manager, counting(0, 64));
  const auto matched = [&](const Tokens& tokens) {
    return manager.match_prefix(tokens).num_tokens;
  };
  EXPECT_EQ(matched(joined(counting(0, 48), counting(900, 30))), 48);
  EXPECT_EQ(matched(joined(counting(0, 47), counting(900, 30))), 32);
  EXPECT_EQ(matched(joined(counting(0, 1), counting(900, 63))), 0);
  EXPECT_EQ(matched(counting(16, 48)), 0);  // the same blocks at other positions
  EXPECT_EQ(matched(joined(counting(0, 16), counting(32, 32))), 16);  // a block left out
  EXPECT_EQ(matched({}), 0);
}

TEST(PrefixCaching, ListsCachedBlocksInOrderOfPosition) {
  BlockManager manager(options(8));
  EXPECT_TRUE(manager.cached_blocks().empty());
  SequenceKv first;
  prefill(manager, first, counting(0, 48));
  const std::vector<int32_t> ids = ids_of(first);
  manager.release(first);
  cache(manager, counting(900, 32));
  const std::vector<CachedBlock> cached = manager.cached_blocks();
  ASSERT_EQ(cached.size(), 5U);
  for (const size_t begin : {0U, 2U}) EXPECT_LE(cached[begin].parent_id, 0) << "a first block";
  for (const size_t next : {1U, 3U, 4U}) {
    EXPECT_EQ(cached[next].parent_id, cached[next - 1].prefix_id);
  }
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(cached[2 + i].id.value, ids[i]);
}

TEST(PrefixCaching, SharesBlocksThatAreStillHeld) {
  BlockManager manager(options(8));
  SequenceKv a;
  SequenceKv b;
  prefill(manager, a, counting(0, 40));
  expect_counts(manager, 5, 0);
  EXPECT_EQ(manager.match_prefix(counting(0, 40)).num_free_blocks, 0);
  prefill(manager, b, counting(0, 40));
  expect_counts(manager, 4, 0);  // two shared, one tail each
  EXPECT_EQ(ids_of(a)[0], ids_of(b)[0]);
  EXPECT_EQ(ids_of(a)[1], ids_of(b)[1]);
  EXPECT_NE(ids_of(a)[2], ids_of(b)[2]);
  manager.release(a);
  expect_counts(manager, 5, 0);
  manager.release(b);
  expect_counts(manager, 8, 2);
  manager.check_invariants({});
}

TEST(PrefixCaching, AConversationFindsItsDecodedTokens) {
  BlockManager manager(options(8));
  SequenceKv kv;
  Tokens tokens = counting(0, 20);
  prefill(manager, kv, tokens);
  for (int32_t i = 0; i < 30; ++i) {
    tokens.push_back(500 + i);
    ASSERT_TRUE(manager.try_reserve(kv, 1));
    manager.commit(kv, tokens, 1);
  }
  manager.release(kv);
  EXPECT_EQ(manager.match_prefix(joined(tokens, counting(900, 5))).num_tokens, 48);
}

// Blocks that were reserved, or computed and not committed, never reach the cache.
TEST(PrefixCaching, OnlyCommittedBlocksAreFindable) {
  BlockManager manager(options(8));
  SequenceKv kv;
  const Tokens tokens = counting(0, 64);
  ASSERT_TRUE(manager.try_begin(kv, tokens, 64));
  manager.commit(kv, tokens, 31);
  EXPECT_EQ(manager.match_prefix(tokens).num_tokens, 16);
  manager.release(kv);
  expect_counts(manager, 8, 1);
}

TEST(PrefixCaching, OffMeansNoHitEver) {
  BlockManagerOptions off = options(8);
  off.enable_prefix_caching = false;
  BlockManager manager(off);
  SequenceKv a;
  prefill(manager, a, counting(0, 64));
  EXPECT_EQ(manager.match_prefix(counting(0, 64)).num_tokens, 0);
  manager.release(a);
  EXPECT_EQ(manager.match_prefix(counting(0, 64)).num_tokens, 0);
  expect_counts(manager, 8, 0);
  SequenceKv b;
  prefill(manager, b, counting(0, 64));
  EXPECT_EQ(b.num_cached_tokens(), 0);
}

TEST(PrefixCaching, ACollisionIsNeverAHit) {
  BlockManagerOptions weak = options(16);
  weak.hasher = constant_hash;
  BlockManager manager(weak);
  cache(manager, counting(0, 33));
  cache(manager, joined(counting(500, 16), counting(600, 17)));
  EXPECT_EQ(manager.match_prefix(counting(700, 40)).num_tokens, 0);
  EXPECT_EQ(manager.match_prefix(joined(counting(0, 16), counting(600, 17))).num_tokens, 16);
  EXPECT_EQ(manager.match_prefix(joined(counting(500, 16), counting(600, 17))).num_tokens, 32);
  EXPECT_EQ(manager.match_prefix(counting(0, 33)).num_tokens, 32);
}

// Eviction takes the sequence that was released first, from its last block to its first.
TEST(Eviction, LeastRecentlyFreedFirstAndExtensionsBeforePrefixes) {
  BlockManager manager(options(5));
  const Tokens old = counting(0, 33);
  const Tokens fresh = counting(500, 33);
  cache(manager, old);
  cache(manager, fresh);
  expect_counts(manager, 5, 4);
  SequenceKv filler;
  ASSERT_TRUE(manager.try_begin(filler, counting(900, 1), 1));
  const std::vector<std::pair<int64_t, int64_t>> left = {
      {32, 32}, {16, 32}, {0, 32}, {0, 16}, {0, 0}};
  for (const auto& [old_tokens, fresh_tokens] : left) {
    EXPECT_EQ(manager.match_prefix(old).num_tokens, old_tokens);
    EXPECT_EQ(manager.match_prefix(fresh).num_tokens, fresh_tokens);
    const bool one_block_more = manager.try_reserve(filler, filler.num_reserved_tokens() + 1);
    EXPECT_EQ(one_block_more, fresh_tokens > 0);
  }
  EXPECT_EQ(manager.stats().num_evicted_blocks, 4);
}

TEST(Eviction, AHitMakesAPrefixRecentAgain) {
  BlockManager manager(options(4));
  cache(manager, counting(0, 17));
  cache(manager, counting(500, 17));
  cache(manager, counting(0, 17));
  SequenceKv filler;
  ASSERT_TRUE(manager.try_begin(filler, counting(900, 33), 33));  // needs one of the two
  EXPECT_EQ(manager.match_prefix(counting(0, 17)).num_tokens, 16);
  EXPECT_EQ(manager.match_prefix(counting(500, 17)).num_tokens, 0);
}

// Transfers of the blocks of a prefix end one by one, in order of position, after its sequence.
TEST(Eviction, TheEndOfATransferIsNoUse) {
  BlockManager manager(options(4));
  const Tokens tokens = counting(0, 49);
  SequenceKv kv;
  prefill(manager, kv, tokens);
  const std::vector<int32_t> ids = ids_of(kv);
  for (int i = 0; i < 3; ++i) manager.hold(BlockId(ids[static_cast<size_t>(i)]));
  manager.release(kv);
  for (int i = 0; i < 3; ++i) manager.end_transfer(BlockId(ids[static_cast<size_t>(i)]));
  SequenceKv filler;
  ASSERT_TRUE(manager.try_begin(filler, counting(900, 1), 1));
  for (const int64_t left : {48, 32, 16, 0}) {
    EXPECT_EQ(manager.match_prefix(tokens).num_tokens, left);
    const SequenceKv* const sequences[] = {&filler};
    manager.check_invariants(sequences);
    EXPECT_EQ(manager.try_reserve(filler, filler.num_reserved_tokens() + 1), left > 0);
  }
}

TEST(Eviction, BlankBlocksAreUsedFirst) {
  BlockManager manager(options(4));
  cache(manager, counting(0, 33));
  SequenceKv kv;
  ASSERT_TRUE(manager.try_begin(kv, counting(500, 32), 32));
  EXPECT_EQ(manager.stats().num_evicted_blocks, 0);
  EXPECT_EQ(manager.match_prefix(counting(0, 33)).num_tokens, 32);
}

// A sequence that hits cached blocks must not have them evicted for its own new ones.
TEST(Exhaustion, HitsCountAgainstTheFreeBlocks) {
  BlockManager manager(options(4));
  cache(manager, counting(0, 49));
  expect_counts(manager, 4, 3);
  SequenceKv kv;
  EXPECT_FALSE(manager.try_begin(kv, counting(0, 80), 32));
  EXPECT_FALSE(kv.begun());
  expect_counts(manager, 4, 3);
  EXPECT_EQ(manager.stats().num_prompt_tokens, 49);  // the attempt is not counted
  ASSERT_TRUE(manager.try_begin(kv, counting(0, 80), 16));
  EXPECT_EQ(kv.num_cached_tokens(), 48);
  expect_counts(manager, 0, 0);
}

TEST(Exhaustion, AFailedReservationChangesNothing) {
  BlockManager manager(options(4));
  SequenceKv a;
  SequenceKv b;
  prefill(manager, a, counting(0, 40));
  prefill(manager, b, counting(500, 16));
  const std::vector<int32_t> before = ids_of(b);
  EXPECT_FALSE(manager.try_reserve(b, 1));
  EXPECT_TRUE(manager.try_reserve(a, 8));  // its tail has room for exactly 8
  EXPECT_FALSE(manager.try_reserve(a, 9));
  EXPECT_EQ(ids_of(b), before);
  EXPECT_EQ(b.num_tokens(), 16);
  const std::vector<const SequenceKv*> live = {&a, &b};
  manager.check_invariants(live);
  manager.release(a);
  EXPECT_TRUE(manager.try_reserve(b, 48));
  EXPECT_FALSE(manager.try_reserve(b, 49));
}

TEST(Exhaustion, ReservingTwiceIsReservingOnce) {
  BlockManager manager(options(8));
  SequenceKv kv;
  ASSERT_TRUE(manager.try_begin(kv, counting(0, 40), 40));
  EXPECT_TRUE(manager.try_reserve(kv, 40));
  EXPECT_TRUE(manager.try_reserve(kv, 48));
  EXPECT_TRUE(manager.try_reserve(kv, 1));
  expect_counts(manager, 5, 0);
}

// Two requests with one prompt, prefilled in the same pass: neither sees the other's blocks, and
// afterwards the cache holds one copy.
TEST(Twins, BothCompleteAndOneStaysCached) {
  for (const bool first_leaves_first : {true, false}) {
    SCOPED_TRACE(first_leaves_first);
    BlockManager manager(options(8));
    SequenceKv a;
    SequenceKv b;
    const Tokens tokens = counting(0, 40);
    ASSERT_TRUE(manager.try_begin(a, tokens, 40));
    ASSERT_TRUE(manager.try_begin(b, tokens, 40));
    manager.commit(a, tokens, 40);
    manager.commit(b, tokens, 40);
    expect_counts(manager, 2, 0);
    SequenceKv c;
    ASSERT_TRUE(manager.try_begin(c, tokens, 8));
    EXPECT_EQ(ids_of(c)[0], ids_of(a)[0]);  // the first to seal is the one that is shared
    manager.release(c);

    manager.release(first_leaves_first ? a : b);
    EXPECT_EQ(manager.match_prefix(tokens).num_tokens, 32);
    manager.release(first_leaves_first ? b : a);
    expect_counts(manager, 8, 2);
    EXPECT_EQ(manager.match_prefix(tokens).num_tokens, 32);
    manager.check_invariants({});
  }
}

TEST(Twins, ACopyThatIsCachedAlreadyMakesWay) {
  BlockManager manager(options(8));
  SequenceKv a;
  SequenceKv b;
  const Tokens tokens = counting(0, 20);
  ASSERT_TRUE(manager.try_begin(a, tokens, 20));
  ASSERT_TRUE(manager.try_begin(b, tokens, 20));
  manager.commit(a, tokens, 20);
  manager.release(a);
  manager.commit(b, tokens, 20);
  expect_counts(manager, 6, 1);
  manager.release(b);
  expect_counts(manager, 8, 1);
  EXPECT_EQ(manager.match_prefix(tokens).num_tokens, 16);
}

// b extends a prefix of which it has a private copy; when a's copy is evicted the extension must
// still be found.
TEST(Twins, AnExtensionOutlivesTheOtherTwin) {
  BlockManager manager(options(4));
  SequenceKv a;
  SequenceKv b;
  const Tokens tokens = counting(0, 16);
  const Tokens longer = counting(0, 48);
  ASSERT_TRUE(manager.try_begin(a, tokens, 16));
  ASSERT_TRUE(manager.try_begin(b, tokens, 16));
  manager.commit(a, tokens, 16);
  manager.release(a);
  manager.commit(b, tokens, 16);
  ASSERT_TRUE(manager.try_reserve(b, 32));
  manager.commit(b, longer, 32);
  SequenceKv filler;
  ASSERT_TRUE(manager.try_begin(filler, counting(900, 1), 1));  // evicts a's copy
  EXPECT_EQ(manager.stats().num_evicted_blocks, 1);
  EXPECT_EQ(manager.match_prefix(counting(0, 49)).num_tokens, 48);
  manager.release(b);
  EXPECT_EQ(manager.match_prefix(counting(0, 49)).num_tokens, 48);
}

// on_discard: called for exactly the blocks that can no longer be read, at the moment when that
// becomes true.
TEST(Discard, ReportsWhatCanNoLongerBeRead) {
  std::vector<int32_t> discarded;
  BlockManagerOptions watched = options(3);
  watched.on_discard = [&](BlockId id) { discarded.push_back(id.value); };
  BlockManager manager(watched);
  SequenceKv kv;
  prefill(manager, kv, counting(0, 20));
  const std::vector<int32_t> ids = ids_of(kv);
  EXPECT_TRUE(discarded.empty());
  manager.release(kv);
  EXPECT_EQ(discarded, (std::vector<int32_t>{ids[1]}));  // the tail; the full block is cached
  discarded.clear();
  SequenceKv filler;
  ASSERT_TRUE(manager.try_begin(filler, counting(500, 48), 48));
  EXPECT_EQ(discarded, (std::vector<int32_t>{ids[0]}));  // evicted
}

TEST(Preemption, ReleasedAndBegunAgainFindsItsOwnBlocks) {
  BlockManager manager(options(8));
  SequenceKv kv;
  Tokens tokens = counting(0, 30);
  prefill(manager, kv, tokens);
  tokens.push_back(77);
  ASSERT_TRUE(manager.try_reserve(kv, 1));
  manager.commit(kv, tokens, 1);
  tokens.push_back(78);  // sampled, not computed
  manager.release(kv);
  prefill(manager, kv, tokens);
  EXPECT_EQ(kv.num_cached_tokens(), 16);
  EXPECT_EQ(kv.prefill_tokens(), 32);
  EXPECT_EQ(kv.num_tokens(), 32);
}

TEST(BlockManagerDeathTest, RefusesMisuse) {
  BlockManager manager(options(4));
  SequenceKv kv;
  const Tokens tokens = counting(0, 20);
  EXPECT_DEATH(manager.release(kv), "released twice or never begun");
  EXPECT_DEATH(manager.try_reserve(kv, 1), "begun");
  EXPECT_DEATH(manager.try_begin(kv, {}, 0), "0 tokens");
  ASSERT_TRUE(manager.try_begin(kv, tokens, 20));
  EXPECT_DEATH(manager.try_begin(kv, tokens, 20), "has begun already");
  EXPECT_DEATH(manager.commit(kv, tokens, 21), "21 tokens after 0, of 20");
  EXPECT_DEATH(manager.commit(kv, counting(0, 40), 33), "33 tokens, 32 reserved");
  EXPECT_DEATH(manager.commit(kv, tokens, -1), "-1 tokens");
  EXPECT_DEATH(manager.check_invariants({}), "counts 1 holders and has 0");
  manager.release(kv);
  EXPECT_DEATH(manager.release(kv), "released twice or never begun");
  EXPECT_DEATH(BlockManager(options(0)), "0 blocks of 16 tokens");
  EXPECT_DEATH(BlockManager(options(1 << 28)), "KV rows are 32-bit");
}

}  // namespace
}  // namespace sluice
