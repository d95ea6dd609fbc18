// What BlockManager says of prefixes that become findable, and of those that are lost.
#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "kv/cached_prompts.h"

namespace sluice {
namespace {

struct Findable {
  int64_t parent = 0;
  Tokens tokens;
};

class FindablePrefixes : public ::testing::Test {
 protected:
  BlockManagerOptions heard(int32_t num_blocks) {
    BlockManagerOptions heard = options(num_blocks);
    heard.on_findable = [this](int64_t id, int64_t parent, std::span<const int32_t> tokens) {
      EXPECT_TRUE(prefixes_.emplace(id, Findable{parent, {tokens.begin(), tokens.end()}}).second);
    };
    heard.on_forgotten = [this](int64_t id) { EXPECT_EQ(prefixes_.erase(id), 1u) << id; };
    return heard;
  }
  // What was heard and not forgotten is what the manager lists.
  void expect_listed(const BlockManager& manager) const {
    const std::vector<FindablePrefix> list = manager.findable_prefixes();
    EXPECT_EQ(list.size(), prefixes_.size());
    EXPECT_TRUE(std::ranges::is_sorted(list, {}, &FindablePrefix::id));
    for (const FindablePrefix& prefix : list) {
      ASSERT_TRUE(prefixes_.contains(prefix.id));
      EXPECT_EQ(prefix.parent_id, prefixes_.at(prefix.id).parent);
      EXPECT_TRUE(std::ranges::equal(manager.tokens(prefix.block), prefixes_.at(prefix.id).tokens));
    }
  }

  std::map<int64_t, Findable> prefixes_;  // by id
};

TEST_F(FindablePrefixes, HaveTheirParentsAndTokens) {
  BlockManager manager(heard(8));
  const Tokens prompt = counting(0, 40);
  cache(manager, prompt);
  ASSERT_EQ(prefixes_.size(), 2u) << "whole blocks";
  const auto& [first_id, first] = *prefixes_.begin();
  EXPECT_EQ(first.parent, manager.root_id(CacheSalt::kNone));
  EXPECT_EQ(first.tokens, Tokens(prompt.begin(), prompt.begin() + kBlock));
  EXPECT_EQ(prefixes_.rbegin()->second.parent, first_id);
  expect_listed(manager);
}

// The second computes what the first has: nothing new can be found, and nothing is lost when one
// of the two leaves.
TEST_F(FindablePrefixes, AreHeardOnceForTwins) {
  BlockManager manager(heard(8));
  const Tokens prompt = counting(0, 33);
  SequenceKv one, two;
  ASSERT_TRUE(manager.try_begin(one, prompt, 33));
  ASSERT_TRUE(manager.try_begin(two, prompt, 33));
  manager.commit(one, prompt, 33);
  manager.commit(two, prompt, 33);
  EXPECT_EQ(prefixes_.size(), 2u);
  expect_listed(manager);
  manager.release(one);
  manager.release(two);
  EXPECT_EQ(prefixes_.size(), 2u);
  expect_listed(manager);
}

TEST_F(FindablePrefixes, AreForgottenWhenEvicted) {
  BlockManager manager(heard(4));
  cache(manager, counting(0, 3 * kBlock));
  cache(manager, counting(1000, 3 * kBlock));
  EXPECT_EQ(prefixes_.size(), 4u) << "no more than there are blocks";
  expect_listed(manager);
}

TEST_F(FindablePrefixes, AreNoneWithoutAPrefixCache) {
  BlockManagerOptions off = heard(4);
  off.enable_prefix_caching = false;
  BlockManager manager(off);
  SequenceKv kv;
  ASSERT_TRUE(manager.try_begin(kv, counting(0, 40), 40));
  manager.commit(kv, counting(0, 40), 40);
  EXPECT_TRUE(prefixes_.empty());
  EXPECT_TRUE(manager.findable_prefixes().empty());
  manager.release(kv);
}

}  // namespace
}  // namespace sluice
