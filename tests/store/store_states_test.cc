// States beside blocks: files of their own under the same key, checked in the same way, counted
// with their blocks, and evicted before them.
#include <fstream>

#include <gtest/gtest.h>

#include "io/temp_dir.h"
#include "store/store_reader.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

StoreFormat hybrid_format() {
  StoreFormat format = test_format();
  format.states = {.block_tokens = 16, .num_layers = 2, .layer_bytes = 5000};
  return format;
}

// The states after a block, as if they were one.
TestBlock states_after(TestBlock block) {
  block.layout = hybrid_format().states;
  block.place.kind = StoredKind::kState;
  return block;
}

class StoredStates : public ::testing::Test {
 protected:
  fs::path path(const TestBlock& block) const {
    return block_path(dir_.path(), store_.format().fingerprint, block.place.key, block.place.kind)
        .whole();
  }

  const TempDir dir_;
  const std::vector<TestBlock> chain_ = make_chain(hybrid_format(), 7, 6);
  BlockStore store_{test_options(dir_.path(), hybrid_format())};
};

TEST_F(StoredStates, AreFilesOfTheirOwn) {
  const TestBlock block = chain_[0], states = states_after(block);
  EXPECT_EQ(write_test_block(store_, states), WriteResult::kWritten);
  EXPECT_FALSE(store_.contains(block.place.key));
  EXPECT_TRUE(store_.contains(block.place.key, StoredKind::kState));
  EXPECT_EQ(read_test_block(store_, block), ReadBack::kMiss);
  EXPECT_EQ(read_test_block(store_, states), ReadBack::kRight);
  EXPECT_EQ(write_test_block(store_, block), WriteResult::kWritten);
  EXPECT_EQ(write_test_block(store_, states), WriteResult::kPresent);
  EXPECT_EQ(read_test_block(store_, block), ReadBack::kRight);
  EXPECT_EQ(store_.stats().num_written, 1);
  EXPECT_EQ(store_.stats().num_states_written, 1);
  EXPECT_EQ(store_.stats().num_states_read, 1);
  const StoreListing listing = list_store(dir_.path());
  ASSERT_EQ(listing.states.size(), 1u);
  EXPECT_EQ(listing.blocks.size(), 1u);
  EXPECT_FALSE(listing.foreign);
  EXPECT_EQ(listing.states[0].path.whole(), path(states));
  EXPECT_EQ(listing.num_bytes(), listing.blocks[0].num_bytes + listing.states[0].num_bytes);
  StoreFiles files;
  EXPECT_EQ(check_stored_file(files, listing.states[0]), "");
}

// Another kind with right checksums, and each section with a bit that is wrong.
TEST_F(StoredStates, AreCheckedAsBlocksAre) {
  const TestBlock block = chain_[0], states = states_after(block);
  write_test_block(store_, block);
  const fs::path bad =
      bad_path(dir_.path(), store_.format().fingerprint, block.place.key, StoredKind::kState)
          .whole();
  fs::copy_file(path(block), path(states));
  StoreFiles files;
  EXPECT_NE(check_stored_file(files, list_store(dir_.path()).states.at(0)), "");
  EXPECT_EQ(read_test_block(store_, states), ReadBack::kMiss);
  EXPECT_TRUE(fs::exists(bad));
  for (const int64_t offset : {0, 9, 30, 4000, 4096, 8192, 8192 + 9999}) {
    ASSERT_EQ(write_test_block(store_, states), WriteResult::kWritten);
    std::fstream file(path(states), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
    file.close();
    EXPECT_EQ(read_test_block(store_, states), ReadBack::kMiss) << offset;
    EXPECT_FALSE(store_.contains(block.place.key, StoredKind::kState)) << offset;
    EXPECT_EQ(read_test_block(store_, block), ReadBack::kRight) << offset;
  }
  EXPECT_EQ(list_store(dir_.path()).bad.size(), 1u) << "one name";
}

TEST_F(StoredStates, CountAChainUpToTheLastOne) {
  std::vector<StoreKey> keys;
  for (const TestBlock& block : chain_) keys.push_back(block.place.key);
  StoreReader reader(store_, 1);
  const auto count = [&] {
    std::atomic<int64_t> result = -1;
    reader.count(keys, [&](size_t n) { result = static_cast<int64_t>(n); });
    while (result < 0) std::this_thread::yield();
    return result.load();
  };
  for (size_t i = 0; i < 5; ++i) write_test_block(store_, chain_[i]);
  EXPECT_EQ(count(), 0);
  write_test_block(store_, states_after(chain_[1]));
  EXPECT_EQ(count(), 2);
  write_test_block(store_, states_after(chain_[3]));
  EXPECT_EQ(count(), 4);
  write_test_block(store_, states_after(chain_[5]));
  EXPECT_EQ(count(), 4) << "states whose block is not stored";
}

TEST_F(StoredStates, GoBeforeTheirBlocks) {
  const auto candidate = [](int key, int parent, int64_t used_ns, StoredKind kind) {
    EvictionCandidate result{.folder = "f", .num_bytes = 10, .used_ns = used_ns, .kind = kind};
    result.key.bytes[0] = static_cast<std::byte>(key);
    result.parent = StoreKey{};
    result.parent->bytes[0] = static_cast<std::byte>(parent);
    return result;
  };
  constexpr StoredKind kKv = StoredKind::kKv, kState = StoredKind::kState;
  const std::vector<EvictionCandidate> files = {candidate(1, 100, 1, kKv), candidate(2, 1, 2, kKv),
                                                candidate(1, 1, 8, kState),
                                                candidate(2, 2, 9, kState)};
  EXPECT_EQ(choose_evictions(files, 1000), (std::vector<size_t>{2, 3, 1, 0}));
  EXPECT_EQ(choose_evictions(files, 1000, KeptChain{"f", files[1].key}),
            (std::vector<size_t>{2, 3}));
}

// A directory with room for three blocks and two states of its chain.
TEST_F(StoredStates, AreEvictedFromAFullDirectory) {
  const TempDir small;
  BlockStoreOptions options = test_options(small.path(), hybrid_format());
  const uint64_t block_bytes = make_header(hybrid_format(), chain_[0].place).file_bytes();
  const uint64_t state_bytes =
      make_header(hybrid_format(), states_after(chain_[0]).place).file_bytes();
  options.max_bytes = 3 * block_bytes + 2 * state_bytes + block_bytes / 2;
  BlockStore store(options);
  for (size_t i = 0; i < 3; ++i) write_test_block(store, chain_[i]);
  for (size_t i = 0; i < 3; ++i) write_test_block(store, states_after(chain_[i]));
  const StoreListing listing = list_store(small.path());
  EXPECT_LE(listing.num_bytes(), options.max_bytes);
  EXPECT_EQ(listing.blocks.size(), 3u);
  EXPECT_TRUE(store.contains(chain_[2].place.key, StoredKind::kState)) << "the newest";
  // Another document takes the room: no states are left without their block.
  const std::vector<TestBlock> other = make_chain(hybrid_format(), 8, 3);
  for (const TestBlock& block : other) write_test_block(store, block);
  for (const StoredFile& file : list_store(small.path()).states) {
    EXPECT_TRUE(store.contains(file.key)) << file.key.hex();
  }
}

}  // namespace
}  // namespace sluice
