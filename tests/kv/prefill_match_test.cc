// BlockManager::match_prefill against what a prompt hits once the prefill is done.
#include <utility>

#include <gtest/gtest.h>

#include "kv/block_manager.h"
#include "kv/token_lists.h"

namespace sluice {
namespace {

// What a prefill is expected to leave for another prompt is what that prompt then hits.
TEST(PrefillMatch, APrefillIsMatchedBeforeItRuns) {
  for (const auto& [scope, tail] : {std::pair{1, 0}, std::pair{32, 0}, std::pair{48, 20}}) {
    for (const int64_t shared : {0, 15, 16, 40, 97, 128, 150}) {
      for (const int64_t length : {16, 97, 129, 200}) {
        for (const int64_t other : {16, 97, 129, 200}) {
          BlockManager manager({.num_blocks = 64,
                                .block_tokens = 16,
                                .scope_tokens = scope,
                                .tail_tokens = tail,
                                .hash_seed = 1});
          Tokens made = joined(counting(0, shared), counting(5000, 200));
          Tokens asked = joined(counting(0, shared), counting(9000, 200));
          made.resize(static_cast<size_t>(other));
          asked.resize(static_cast<size_t>(length));
          const int64_t expected = manager.match_prefill(asked, 0, made);
          SequenceKv kv;
          ASSERT_TRUE(manager.try_begin(kv, made, other));
          manager.commit(kv, made, other);
          manager.release(kv);
          const int64_t hit = manager.match_prefix(asked).num_tokens;
          EXPECT_EQ(expected, hit)
              << "scope " << scope << ", " << shared << " of " << length << " and " << other;
          EXPECT_EQ(manager.match_prefill(asked, hit, made), 0) << "no more than is cached";
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice
