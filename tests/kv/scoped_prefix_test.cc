// Prefix hits of BlockManager where a selection has a scope and a tail.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kv/cached_prompts.h"

namespace sluice {
namespace {

// (length of a prompt, tokens that are hit)
using Cases = std::vector<std::pair<int64_t, int64_t>>;

BlockManagerOptions scoped_options(int32_t scope_tokens, int32_t tail_tokens) {
  BlockManagerOptions scoped = options(32);
  scoped.scope_tokens = scope_tokens;
  scoped.tail_tokens = tail_tokens;
  return scoped;
}

// Tokens of `prompt` that come from a cache that has computed `cached`.
int64_t hit(const BlockManagerOptions& options, int64_t cached, int64_t prompt) {
  BlockManager manager(options);
  cache(manager, counting(0, cached));
  manager.check_invariants({});
  return manager.match_prefix(counting(0, prompt)).num_tokens;
}

// Complete scopes of 64 tokens, whole blocks of 16, and never the last token.
TEST(ScopedPrefixes, HitsAreWholeScopes) {
  const BlockManagerOptions scoped = scoped_options(64, 0);
  const Cases cases = {{63, 0}, {64, 0}, {65, 64}, {127, 64}, {128, 64}, {129, 128}, {200, 192}};
  for (const auto& [length, tokens] : cases) {
    EXPECT_EQ(hit(scoped, length, length), tokens) << length;
    EXPECT_EQ(hit(scoped, 300, length), tokens) << length << ", after a longer prompt";
  }
  EXPECT_EQ(hit(scoped, 127, 300), 64) << "the second scope was not complete";
}

// A scope that is longer than any prompt: nothing is found, and nothing entered.
TEST(ScopedPrefixes, AScopeOfTheWholePromptHasNoHits) {
  const BlockManagerOptions scoped = scoped_options(1 << 30, 0);
  for (const int64_t length : {16, 64, 200, 300}) EXPECT_EQ(hit(scoped, 300, length), 0) << length;
  BlockManager manager(scoped);
  cache(manager, counting(0, 300));
  EXPECT_EQ(manager.num_cached_blocks(), 0);
}

// Scopes of 24 tokens: blocks of 16 end at a scope every 48 tokens.
TEST(ScopedPrefixes, HitsEndWhereABlockAndAScopeEnd) {
  const BlockManagerOptions scoped = scoped_options(24, 0);
  EXPECT_EQ(hit(scoped, 200, 200), 192);
  EXPECT_EQ(hit(scoped, 191, 200), 144);
  EXPECT_EQ(hit(scoped, 200, 48), 0);
  EXPECT_EQ(hit(scoped, 200, 49), 48);
}

// The last rows of a prompt select differently. Both prompts have such rows: the one whose blocks
// are found, and the one that finds them.
TEST(ScopedPrefixes, RowsOfTheTailAreNeitherFoundNorReplaced) {
  const BlockManagerOptions scoped = scoped_options(64, 40);
  for (const auto& [length, tokens] : Cases{{103, 0}, {104, 64}, {167, 64}, {168, 128}}) {
    EXPECT_EQ(hit(scoped, length, 400), tokens) << length << " cached";
    EXPECT_EQ(hit(scoped, 400, length), tokens) << length << " asked";
  }
  EXPECT_EQ(hit(scoped_options(1, 40), 100, 400), 48) << "60 tokens, in whole blocks";
  EXPECT_EQ(hit(scoped_options(1, 40), 30, 400), 0) << "a tail longer than the prompt";
}

// With scopes, blocks from the prompt's last scope on are not entered, so decoded ones are not
// either: their prefix could not be found.
TEST(ScopedPrefixes, DecodedBlocksAfterACutScopeAreNotFound) {
  BlockManager manager(scoped_options(64, 0));
  SequenceKv kv;
  Tokens tokens = counting(0, 70);
  prefill(manager, kv, tokens);
  for (int32_t i = 0; i < 80; ++i) {
    tokens.push_back(500 + i);
    ASSERT_TRUE(manager.try_reserve(kv, 1));
    manager.commit(kv, tokens, 1);
  }
  const std::vector<const SequenceKv*> live = {&kv};
  manager.check_invariants(live);
  EXPECT_EQ(kv.num_sealed_blocks(), 150 / kBlock);
  manager.release(kv);
  manager.check_invariants({});
  EXPECT_EQ(manager.match_prefix(joined(tokens, counting(900, 90))).num_tokens, 64);
  expect_counts(manager, 32, 4);
}

}  // namespace
}  // namespace sluice
