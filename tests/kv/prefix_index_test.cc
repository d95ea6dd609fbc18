// PrefixIndex: chains of blocks, collisions under weak hashes, equal blocks of two sequences.
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include "kv/token_lists.h"

namespace sluice {
namespace {

constexpr int32_t kBlockTokens = 4;
constexpr uint64_t kSeed = 7;

uint64_t same_hash(uint64_t, std::span<const int32_t>) { return 5; }

PrefixIndex make_index(BlockHasher hasher = xxh3_block_hash) {
  return PrefixIndex(8, kBlockTokens, kSeed, hasher);
}

// Against the `xxhash` Python package 3.5.0:
//   xxhash.xxh3_64_intdigest(struct.pack('<4i', 1, 2, 3, 4), seed=7), and 256 tokens 0, 1, ...
TEST(BlockHash, IsXxh3SeededWithTheParent) {
  EXPECT_EQ(xxh3_block_hash(7, counting(1, 4)), 0x06865270683489fcu);
  EXPECT_EQ(xxh3_block_hash(7, counting(0, 256)), 0x2b21368c597bde63u);
}

TEST(BlockHash, SeedsOfTwoProcessesDiffer) { EXPECT_NE(draw_hash_seed(), draw_hash_seed()); }

TEST(PrefixIndex, FindsWhatWasEntered) {
  PrefixIndex index = make_index();
  EXPECT_FALSE(index.find(index.root(), counting(0, kBlockTokens)).valid());
  index.insert(BlockId(3), index.root(), counting(0, kBlockTokens));
  EXPECT_EQ(index.find(index.root(), counting(0, kBlockTokens)), BlockId(3));
  EXPECT_FALSE(index.find(index.root(), counting(1, kBlockTokens)).valid());
  EXPECT_EQ(index.size(), 1);
  index.erase(BlockId(3));
  EXPECT_FALSE(index.find(index.root(), counting(0, kBlockTokens)).valid());
  EXPECT_FALSE(index.contains(BlockId(3)));
  EXPECT_EQ(index.size(), 0);
}

TEST(PrefixIndex, TheSameTokensAfterAnotherPrefixAreAnotherBlock) {
  PrefixIndex index = make_index();
  const Prefix a = index.insert(BlockId(0), index.root(), counting(0, kBlockTokens));
  const Prefix b = index.insert(BlockId(1), index.root(), counting(100, kBlockTokens));
  index.insert(BlockId(2), a, counting(50, kBlockTokens));
  EXPECT_EQ(index.find(a, counting(50, kBlockTokens)), BlockId(2));
  EXPECT_FALSE(index.find(b, counting(50, kBlockTokens)).valid());
  EXPECT_FALSE(index.find(index.root(), counting(50, kBlockTokens)).valid());
}

// With a constant hash only the comparison distinguishes blocks: other tokens, and equal tokens
// after another prefix.
TEST(PrefixIndex, EachSaltHasARootOfItsOwn) {
  PrefixIndex index(8, 2, /*seed=*/3);
  EXPECT_EQ(index.salt(""), CacheSalt::kNone);
  EXPECT_EQ(index.salt("a"), index.salt("a"));
  EXPECT_NE(index.salt("a"), index.salt("b"));
  EXPECT_NE(index.salt("a"), PrefixIndex(8, 2, /*seed=*/4).salt("a"))
      << "a client can prepare a collision";
  const std::vector<int32_t> tokens = {1, 2};
  int32_t block = 0;
  for (const char* text : {"", "a", "b"}) {
    const Prefix root = index.root(index.salt(text));
    EXPECT_LE(root.id, 0);
    EXPECT_FALSE(index.find(root, tokens).valid()) << "found what another salt entered";
    index.insert(BlockId(block), root, tokens);
    EXPECT_EQ(index.find(root, tokens), BlockId(block));
    EXPECT_EQ(index.parent_id(BlockId(block++)), root.id);
  }
}

TEST(PrefixIndex, ACollisionNeverFindsTheWrongBlock) {
  PrefixIndex index = make_index(same_hash);
  const Prefix a = index.insert(BlockId(0), index.root(), counting(0, kBlockTokens));
  const Prefix b = index.insert(BlockId(1), index.root(), counting(100, kBlockTokens));
  index.insert(BlockId(2), a, counting(50, kBlockTokens));
  ASSERT_EQ(a.hash, b.hash);
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(index.find(index.root(), counting(0, kBlockTokens)), BlockId(0));
  EXPECT_EQ(index.find(index.root(), counting(100, kBlockTokens)), BlockId(1));
  EXPECT_FALSE(index.find(index.root(), counting(200, kBlockTokens)).valid());
  EXPECT_EQ(index.find(a, counting(50, kBlockTokens)), BlockId(2));
  EXPECT_FALSE(index.find(b, counting(50, kBlockTokens)).valid());
  EXPECT_FALSE(index.find(index.root(), counting(50, kBlockTokens)).valid());
}

// Erasing the first, a middle and the last entry of one bucket leaves the others findable.
TEST(PrefixIndex, EraseUnlinksAnywhereInABucket) {
  for (int32_t gone = 0; gone < 3; ++gone) {
    PrefixIndex index = make_index(same_hash);
    for (int32_t i = 0; i < 3; ++i) {
      index.insert(BlockId(i), index.root(), counting(10 * i, kBlockTokens));
    }
    index.erase(BlockId(gone));
    for (int32_t i = 0; i < 3; ++i) {
      const BlockId found = index.find(index.root(), counting(10 * i, kBlockTokens));
      EXPECT_EQ(found, i == gone ? BlockId() : BlockId(i)) << "erased " << gone;
    }
  }
}

TEST(PrefixIndex, TwinsShareAPrefixAndTheFirstIsFound) {
  PrefixIndex index = make_index();
  const Prefix first = index.insert(BlockId(4), index.root(), counting(0, kBlockTokens));
  EXPECT_FALSE(index.twin(BlockId(4)).valid());
  const Prefix second = index.insert(BlockId(1), index.root(), counting(0, kBlockTokens));
  EXPECT_EQ(first.id, second.id);
  EXPECT_EQ(first.hash, second.hash);
  EXPECT_EQ(index.twin(BlockId(4)), BlockId(1));
  EXPECT_EQ(index.twin(BlockId(1)), BlockId(4));
  EXPECT_EQ(index.find(index.root(), counting(0, kBlockTokens)), BlockId(4));
  index.insert(BlockId(2), second, counting(9, kBlockTokens));
  index.erase(BlockId(4));
  EXPECT_EQ(index.find(index.root(), counting(0, kBlockTokens)), BlockId(1));
  EXPECT_EQ(index.find(index.prefix(BlockId(1)), counting(9, kBlockTokens)), BlockId(2));
}

// A reused id could make an old extension look like an extension of the new prefix.
TEST(PrefixIndex, IdsOfPrefixesAreNeverUsedAgain) {
  PrefixIndex index = make_index();
  const Prefix old = index.insert(BlockId(0), index.root(), counting(0, kBlockTokens));
  index.erase(BlockId(0));
  const Prefix fresh = index.insert(BlockId(0), index.root(), counting(0, kBlockTokens));
  EXPECT_EQ(fresh.hash, old.hash);
  EXPECT_GT(fresh.id, old.id);
}

TEST(PrefixIndexDeathTest, RefusesMisuse) {
  PrefixIndex index = make_index();
  index.insert(BlockId(0), index.root(), counting(0, kBlockTokens));
  EXPECT_DEATH(index.insert(BlockId(0), index.root(), counting(9, kBlockTokens)),
               "entered already");
  EXPECT_DEATH(index.erase(BlockId(1)), "block 1 is not entered");
  EXPECT_DEATH(index.find(index.root(), counting(0, kBlockTokens + 1)), "5 tokens");
}

}  // namespace
}  // namespace sluice
