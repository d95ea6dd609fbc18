// Prefix hits of BlockManager where a sequence can go on after some prefixes alone, and the end of
// a prefix.
#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "kv/cached_prompts.h"

namespace sluice {
namespace {

// A manager with the prefixes after which a sequence can go on, and those that were forgotten.
class ResumedPrefixes : public ::testing::Test {
 protected:
  BlockManagerOptions resumed(int32_t num_blocks) {
    BlockManagerOptions resumed = options(num_blocks);
    resumed.resumes_after = [this](int64_t id) { return states_.contains(id); };
    resumed.on_forgotten = [this](int64_t id) { forgotten_.push_back(id); };
    return resumed;
  }

  // The ids of the prefixes that end with the blocks of a cached prompt, first to last.
  static std::vector<int64_t> prefixes(const BlockManager& manager) {
    std::vector<int64_t> ids;
    for (const CachedBlock& block : manager.cached_blocks()) ids.push_back(block.prefix_id);
    std::ranges::sort(ids);
    return ids;
  }

  std::set<int64_t> states_;
  std::vector<int64_t> forgotten_;
};

TEST_F(ResumedPrefixes, AHitEndsAtTheDeepestAndSaysHowMuchKvThereIs) {
  BlockManager manager(resumed(16));
  cache(manager, counting(0, 100));
  const std::vector<int64_t> ids = prefixes(manager);
  ASSERT_EQ(ids.size(), 6u);
  const auto match = [&] { return manager.match_prefix(counting(0, 100)); };
  EXPECT_EQ(match().num_tokens, 0);
  EXPECT_EQ(match().num_free_blocks, 0);
  EXPECT_EQ(match().num_kv_tokens, 96);
  states_ = {ids[1], ids[3]};
  EXPECT_EQ(match().num_tokens, 4 * kBlock);
  EXPECT_EQ(match().num_free_blocks, 4);
  EXPECT_EQ(match().num_kv_tokens, 96);
  EXPECT_EQ(manager.match_prefix(counting(0, 4 * kBlock)).num_tokens, 2 * kBlock)
      << "a token is left to compute";
  SequenceKv sequence;
  ASSERT_TRUE(manager.try_begin(sequence, counting(0, 100), 36));
  EXPECT_EQ(sequence.num_cached_tokens(), 4 * kBlock);
  EXPECT_EQ(manager.prefix_id(sequence.newest_full()), ids[3]);
  manager.release(sequence);
}

// Blocks behind the hit are computed again beside those that are cached; then one of both goes, and
// the prefix stays.
TEST_F(ResumedPrefixes, ATwinKeepsThePrefix) {
  BlockManager manager(resumed(16));
  cache(manager, counting(0, 64));
  const std::vector<int64_t> ids = prefixes(manager);
  states_ = {ids[0]};
  cache(manager, counting(0, 64));
  EXPECT_EQ(prefixes(manager), ids);
  EXPECT_TRUE(forgotten_.empty());
}

TEST_F(ResumedPrefixes, AnEvictedPrefixIsForgottenOnce) {
  BlockManager manager(resumed(6));
  cache(manager, counting(0, 64));
  const std::vector<int64_t> ids = prefixes(manager);
  cache(manager, counting(500, 64));
  EXPECT_EQ(forgotten_, (std::vector<int64_t>{ids[3], ids[2]})) << "last to first";
  EXPECT_EQ(manager.match_prefix(counting(0, 64)).num_kv_tokens, 2 * kBlock);
}

}  // namespace
}  // namespace sluice
