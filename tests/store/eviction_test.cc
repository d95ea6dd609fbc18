// Which blocks go: the rule by itself, and a store under a small limit.
#include "store/eviction.h"

#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "io/temp_dir.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

StoreKey key_of(int number) {
  StoreKey key;
  key.bytes[0] = static_cast<std::byte>(number);
  return key;
}

// A block of 10 bytes. Its parent need not be stored.
EvictionCandidate block(int key, int parent, int64_t used_ns) {
  return {.folder = "f",
          .key = key_of(key),
          .parent = key_of(parent),
          .num_bytes = 10,
          .used_ns = used_ns};
}

using Indices = std::vector<size_t>;

// 1 - 2 - 3   and   1 - 4;   5 alone. The prefix was used longest ago.
const std::vector<EvictionCandidate> kTree = {block(1, 100, 1), block(2, 1, 2), block(3, 2, 30),
                                              block(4, 1, 20), block(5, 101, 25)};

TEST(ChooseEvictions, TakesTheOldestLeafFirst) {
  EXPECT_EQ(choose_evictions(kTree, 0), Indices{});
  EXPECT_EQ(choose_evictions(kTree, 1), Indices{3});
  EXPECT_EQ(choose_evictions(kTree, 10), Indices{3});
  EXPECT_EQ(choose_evictions(kTree, 11), (Indices{3, 4}));
  EXPECT_EQ(choose_evictions(kTree, 1000), (Indices{3, 4, 2, 1, 0}));
}

TEST(ChooseEvictions, KeepsTheChainThatIsWritten) {
  EXPECT_EQ(choose_evictions(kTree, 1000, KeptChain{"f", key_of(2)}), (Indices{3, 4, 2}));
  EXPECT_EQ(choose_evictions(kTree, 1000, KeptChain{"f", key_of(3)}), (Indices{3, 4}));
  EXPECT_EQ(choose_evictions(kTree, 1000, KeptChain{"g", key_of(3)}), (Indices{3, 4, 2, 1, 0}))
      << "of another fingerprint";
  EXPECT_EQ(choose_evictions(kTree, 1000, KeptChain{"f", key_of(77)}), (Indices{3, 4, 2, 1, 0}))
      << "not stored";
}

TEST(ChooseEvictions, TakesUnreadableBlocksFirst) {
  std::vector<EvictionCandidate> blocks = kTree;
  blocks.push_back({.folder = "f", .key = key_of(6), .parent = {}, .num_bytes = 10, .used_ns = 99});
  EXPECT_EQ(choose_evictions(blocks, 11), (Indices{5, 3}));
}

TEST(ChooseEvictions, TakesPinnedBlocksLast) {
  std::vector<EvictionCandidate> blocks = kTree;
  for (const size_t i : {0u, 3u})
    blocks[i].is_pinned = true;  // 1 - 4, of which 4 is the oldest leaf
  EXPECT_EQ(choose_evictions(blocks, 1), Indices{4});
  EXPECT_EQ(choose_evictions(blocks, 1000), (Indices{4, 2, 1, 3, 0}));
  blocks.push_back(block(6, 4, 1));  // goes on after the pin
  EXPECT_EQ(choose_evictions(blocks, 11), (Indices{5, 4}));
  blocks[3].parent.reset();
  EXPECT_EQ(choose_evictions(blocks, 11), (Indices{5, 3})) << "a pinned one that cannot be read";
}

TEST(ChooseEvictions, EqualKeysOfTwoFingerprintsAreTwoBlocks) {
  std::vector<EvictionCandidate> blocks = {block(1, 100, 1), block(2, 1, 2)};
  blocks[0].folder = "g";  // no longer the parent of the other
  EXPECT_EQ(choose_evictions(blocks, 1), Indices{0});
}

// The definition, step by step: the oldest of the blocks that no parent field names.
TEST(ChooseEvictions, AgreesWithTheDefinitionOnRandomTrees) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<EvictionCandidate> blocks;
    const int count = 1 + static_cast<int>(random() % 20);
    for (int i = 1; i <= count; ++i) {
      const int parent =
          random() % 4 == 0 ? 200 : static_cast<int>(random() % static_cast<unsigned>(i));
      blocks.push_back(block(i, parent, static_cast<int64_t>(random() % 10000)));
    }
    std::map<StoreKey, size_t> left;
    for (size_t i = 0; i < blocks.size(); ++i) left[blocks[i].key] = i;
    Indices expected;
    while (!left.empty()) {
      std::optional<size_t> oldest;
      for (const auto& [key, i] : left) {
        const bool has_child = std::any_of(left.begin(), left.end(), [&](const auto& other) {
          return blocks[other.second].parent == key;
        });
        if (!has_child && (!oldest || blocks[i].used_ns < blocks[*oldest].used_ns)) oldest = i;
      }
      expected.push_back(*oldest);
      left.erase(blocks[*oldest].key);
    }
    EXPECT_EQ(choose_evictions(blocks, 1000), expected) << "round " << round;
  }
}

constexpr uint64_t kFileBytes = 8192 + 3000;

// The time of use has the file system's resolution.
void next_tick() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// Two documents of four blocks under a limit of eight: a third one pushes out the ends of the one
// that was used longest ago, and its beginning still hits.
TEST(SmallStore, PrefixesOutliveTheirExtensions) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = 8 * kFileBytes + kFileBytes / 2;
  BlockStore store(options);
  const auto old = make_chain(test_format(), 10, 4), fresh = make_chain(test_format(), 11, 4),
             added = make_chain(test_format(), 12, 2);
  for (const auto* chain : {&old, &fresh}) {
    for (const TestBlock& block : *chain) {
      ASSERT_EQ(write_test_block(store, block), WriteResult::kWritten);
    }
    next_tick();
  }
  EXPECT_EQ(store.stats().num_evicted, 0);
  for (const TestBlock& block : added) {
    ASSERT_EQ(write_test_block(store, block), WriteResult::kWritten);
  }
  EXPECT_GE(store.stats().num_evicted, 2);
  EXPECT_LE(list_store(dir.path()).num_bytes(), options.max_bytes);
  EXPECT_EQ(read_test_block(store, old[0]), ReadBack::kRight) << "the prefix still hits";
  EXPECT_FALSE(store.contains(old[3].place.key)) << "the leaf has gone";
  for (const auto* chain : {&fresh, &added}) {
    for (const TestBlock& block : *chain) {
      EXPECT_EQ(read_test_block(store, block), ReadBack::kRight);
    }
  }
}

// The pin of one document outlives others that were used since; without it, it goes first.
TEST(SmallStore, PinnedBlocksGoLast) {
  for (const bool is_pinned : {true, false}) {
    const TempDir dir;
    BlockStoreOptions options = test_options(dir.path());
    options.max_bytes = 6 * kFileBytes + kFileBytes / 2;
    BlockStore store(options);
    const auto pinned = make_chain(test_format(), 50, 3), other = make_chain(test_format(), 51, 3),
               added = make_chain(test_format(), 52, 3);
    std::set<StoreKey> keys;
    for (const TestBlock& block : pinned) keys.insert(block.place.key);
    if (is_pinned) store.set_pinned(keys);
    for (const auto* chain : {&pinned, &other, &added}) {
      for (const TestBlock& block : *chain) {
        ASSERT_EQ(write_test_block(store, block), WriteResult::kWritten);
      }
      next_tick();
    }
    EXPECT_EQ(store.stats().num_evicted, 3);
    for (const TestBlock& block : pinned) EXPECT_EQ(store.contains(block.place.key), is_pinned);
    for (const TestBlock& block : other) EXPECT_EQ(store.contains(block.place.key), !is_pinned);
  }
}

TEST(SmallStore, UseCountsNotAge) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = 3 * kFileBytes + kFileBytes / 2;
  BlockStore store(options);
  std::vector<TestBlock> singles;
  for (uint32_t seed = 20; seed < 24; ++seed) {
    singles.push_back(make_chain(test_format(), seed, 1)[0]);
  }
  for (int i = 0; i < 3; ++i) {
    write_test_block(store, singles[static_cast<size_t>(i)]);
    next_tick();
  }
  ASSERT_EQ(read_test_block(store, singles[0]), ReadBack::kRight);
  ASSERT_EQ(write_test_block(store, singles[3]), WriteResult::kWritten);
  EXPECT_TRUE(store.contains(singles[0].place.key)) << "written first, but used since";
  EXPECT_FALSE(store.contains(singles[1].place.key));
}

// A document that is longer than the limit: its beginning stays, and the rest is not written.
TEST(SmallStore, KeepsTheBeginningOfALongDocument) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = 4 * kFileBytes + kFileBytes / 2;
  BlockStore store(options);
  const auto old = make_chain(test_format(), 30, 3), chain = make_chain(test_format(), 31, 7);
  for (const TestBlock& block : old) write_test_block(store, block);
  for (size_t i = 0; i < chain.size(); ++i) {
    EXPECT_EQ(write_test_block(store, chain[i]),
              i < 4 ? WriteResult::kWritten : WriteResult::kNoRoom)
        << i;
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(read_test_block(store, chain[i]), ReadBack::kRight);
  EXPECT_EQ(store.stats().num_no_room, 3);
  EXPECT_TRUE(store.stats().is_writing);
}

TEST(SmallStore, BadFilesAndThoseOfDeadWritersGoFirst) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = 3 * kFileBytes + kFileBytes / 2;
  const auto chain = make_chain(test_format(), 40, 3);
  const auto path = block_path(dir.path(), test_format().fingerprint, chain[0].place.key);
  {
    BlockStore store(options);
    ASSERT_EQ(write_test_block(store, chain[0]), WriteResult::kWritten);
    ASSERT_EQ(write_test_block(store, chain[1]), WriteResult::kWritten);
    std::filesystem::resize_file(path.whole(), 9000);
    EXPECT_EQ(read_test_block(store, chain[0]), ReadBack::kMiss);
    ASSERT_EQ(list_store(dir.path()).bad.size(), 1u);
    ASSERT_EQ(write_test_block(store, chain[0]), WriteResult::kWritten);
    ASSERT_EQ(write_test_block(store, chain[2]), WriteResult::kWritten);
    EXPECT_EQ(list_store(dir.path()).bad.size(), 0u);
    EXPECT_EQ(store.stats().num_evicted, 0);
  }
  std::ofstream(temporary_path(path).whole()) << std::string(5000, 'x');
  ASSERT_EQ(list_store(dir.path()).parts.size(), 1u);
  StoreFiles files;
  int fd = -1;
  const auto alive = temporary_path(path);
  ASSERT_EQ(files.create(alive, &fd), 0);
  BlockStore store(options);
  EXPECT_EQ(list_store(dir.path()).parts.size(), 1u) << "a writer at work keeps its file";
  EXPECT_TRUE(std::filesystem::exists(alive.whole()));
  files.close(fd);
}

// A process that holds the lock, and is stopped, costs half a second and this block.
TEST(SmallStore, DoesNotWaitForAnotherThatEvicts) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = kFileBytes + 1;
  BlockStore store(options);
  const TestBlock a = make_chain(test_format(), 50, 1)[0], b = make_chain(test_format(), 51, 1)[0];
  ASSERT_EQ(write_test_block(store, a), WriteResult::kWritten);
  StoreLock other(dir.path());
  ASSERT_TRUE(other.try_lock());
  EXPECT_EQ(write_test_block(store, b), WriteResult::kNoRoom);
  EXPECT_EQ(read_test_block(store, a), ReadBack::kRight);
  other.unlock();
  EXPECT_EQ(write_test_block(store, b), WriteResult::kWritten);
  EXPECT_FALSE(store.contains(a.place.key));
}

}  // namespace
}  // namespace sluice
