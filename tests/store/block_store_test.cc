// What a store keeps and gives back, in one process and in several stores on one directory.
#include "store/block_store.h"

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/ordinary_user.h"
#include "io/temp_dir.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

size_t num_files_below(const std::filesystem::path& dir) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    count += entry.is_regular_file();
  }
  return count;
}

TEST(BlockStore, GivesBackWhatWasWritten) {
  const TempDir dir;
  const auto chain = make_chain(test_format(), 1, 4);
  BlockStore store(test_options(dir.path() / "made" / "here"));
  for (const TestBlock& block : chain) {
    EXPECT_FALSE(store.contains(block.place.key));
    EXPECT_EQ(read_test_block(store, block), ReadBack::kMiss);
    EXPECT_EQ(write_test_block(store, block), WriteResult::kWritten);
    EXPECT_TRUE(store.contains(block.place.key));
    EXPECT_EQ(read_test_block(store, block), ReadBack::kRight);
    EXPECT_EQ(write_test_block(store, block), WriteResult::kPresent);
  }
  const StoreStats stats = store.stats();
  EXPECT_EQ(stats.num_hits, 4);
  EXPECT_EQ(stats.num_misses, 4);
  EXPECT_EQ(stats.num_written, 4);
  EXPECT_EQ(stats.num_present, 4);
  EXPECT_EQ(stats.num_bad + stats.num_failed + stats.num_no_room + stats.num_evicted, 0);
  EXPECT_EQ(stats.read_bytes, 4u * (8192 + 3000));
  EXPECT_EQ(stats.written_bytes, stats.read_bytes);
  EXPECT_GT(stats.read_bytes_per_second, 0);
  EXPECT_GT(stats.write_bytes_per_second, 0);
  EXPECT_EQ(num_files_below(dir.path()), 6u) << "four blocks, the lock and the marker";
}

TEST(BlockStore, IsSharedAndOutlivesTheProcess) {
  const TempDir dir;
  const auto chain = make_chain(test_format(), 2, 2);
  {
    BlockStore first(test_options(dir.path()));
    BlockStore second(test_options(dir.path()));
    EXPECT_EQ(write_test_block(first, chain[0]), WriteResult::kWritten);
    EXPECT_EQ(read_test_block(second, chain[0]), ReadBack::kRight);
    EXPECT_EQ(write_test_block(second, chain[0]), WriteResult::kPresent);
    EXPECT_EQ(write_test_block(second, chain[1]), WriteResult::kWritten);
  }
  BlockStore later(test_options(dir.path()));
  for (const TestBlock& block : chain) EXPECT_EQ(read_test_block(later, block), ReadBack::kRight);
}

TEST(BlockStore, FindsNothingOfAnotherFingerprintOrLayout) {
  const TempDir dir;
  BlockStore store(test_options(dir.path()));
  const auto chain = make_chain(test_format(), 3, 1);
  ASSERT_EQ(write_test_block(store, chain[0]), WriteResult::kWritten);
  BlockStore other(test_options(dir.path(), test_format("another model")));
  EXPECT_EQ(read_test_block(other, chain[0]), ReadBack::kMiss);
  EXPECT_EQ(other.stats().num_bad, 0);

  // Cannot happen with a fingerprint that has the layout in it, so it counts as damage.
  StoreFormat wider = test_format();
  wider.layout.layer_bytes = 1001;
  TestBlock block = chain[0];
  block.layout = wider.layout;
  BlockStore wide(test_options(dir.path(), wider));
  EXPECT_EQ(read_test_block(wide, block), ReadBack::kMiss);
  EXPECT_EQ(wide.stats().num_bad, 1);
}

TEST(BlockStore, KeepsSummariesByNamePageAndSize) {
  const TempDir dir;
  BlockStore store(test_options(dir.path()));
  const TestBlock block = make_chain(test_format(), 4, 1)[0];
  const std::vector<std::byte> bounds = bytes_from(block.place.key, 96, 1);
  const SummaryFormat format = {.name = "quest.bounds", .page_tokens = 8, .num_bytes = 96};
  const SummarySource source = {format, bounds};
  ASSERT_EQ(write_test_block(store, block, {&source, 1}), WriteResult::kWritten);

  std::vector<std::byte> memory(static_cast<size_t>(kTestLayout.kv_bytes())), found(96);
  const auto layers = layers_of(std::span(memory), kTestLayout);
  std::vector<SummaryTarget> targets(4, {.format = format, .bytes = found});
  targets[1].format.name = "quest.means";
  targets[2].format.page_tokens = 16;
  targets[3].format.num_bytes = 95;
  ASSERT_TRUE(store.read(
      {.place = block.place, .tokens = block.tokens, .layers = layers, .summaries = targets}));
  EXPECT_EQ(memory, block.kv());
  EXPECT_EQ(found, bounds);
  EXPECT_TRUE(targets[0].is_found);
  EXPECT_FALSE(targets[1].is_found || targets[2].is_found || targets[3].is_found);
}

TEST(BlockStore, ReadOnlyChangesNothing) {
  const TempDir dir;
  const auto chain = make_chain(test_format(), 5, 3);
  {
    BlockStore store(test_options(dir.path()));
    for (const TestBlock& block : chain) write_test_block(store, block);
  }
  const auto damaged =
      block_path(dir.path(), test_format().fingerprint, chain[1].place.key).whole();
  std::filesystem::resize_file(damaged, 5000);
  const auto used = std::filesystem::last_write_time(
      block_path(dir.path(), test_format().fingerprint, chain[0].place.key).whole());

  FaultyFiles files;
  BlockStoreOptions options = test_options(dir.path());
  options.mode = StoreMode::kReadOnly;
  options.max_bytes = 0;
  BlockStore store(options, files);
  EXPECT_EQ(read_test_block(store, chain[0]), ReadBack::kRight);
  EXPECT_EQ(read_test_block(store, chain[1]), ReadBack::kMiss);
  EXPECT_EQ(write_test_block(store, chain[1]), WriteResult::kOff);
  EXPECT_EQ(files.num_changes, 0);
  EXPECT_TRUE(std::filesystem::exists(damaged));
  EXPECT_FALSE(store.contains(chain[1].place.key)) << "not read again";
  EXPECT_EQ(read_test_block(store, chain[1]), ReadBack::kMiss);
  EXPECT_EQ(store.stats().num_bad, 1);
  EXPECT_FALSE(store.stats().is_writing);
  EXPECT_EQ(std::filesystem::last_write_time(
                block_path(dir.path(), test_format().fingerprint, chain[0].place.key).whole()),
            used);
}

TEST(BlockStore, RefusesWhatItCannotUse) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path() / "none");
  options.mode = StoreMode::kReadOnly;
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { BlockStore store(options); }),
                       "cannot read the KV store " + options.dir.string()));
  options.mode = StoreMode::kReadWrite;
  options.max_bytes = 8192;
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kInvalidArgument, [&] { BlockStore store(options); }),
               "8192 bytes cannot hold a block, which has 11192"));
  EXPECT_FALSE(std::filesystem::exists(options.dir));
  dir.write("file", "");
  EXPECT_TRUE(contains(
      expect_error(ErrorCode::kIo, [&] { BlockStore store(test_options(dir.path() / "file")); }),
      "cannot write to the KV store"));
  std::filesystem::permissions(dir.path(), std::filesystem::perms(0555));
  const AsOrdinaryUser user;
  if (!user.is_one()) GTEST_SKIP() << "cannot become an ordinary user";
  expect_error(ErrorCode::kIo, [&] { BlockStore store(test_options(dir.path())); });
}

// The folder may be removed by hand while a server runs.
TEST(BlockStore, MakesItsFoldersAgain) {
  const TempDir dir;
  const auto chain = make_chain(test_format(), 6, 2);
  BlockStore store(test_options(dir.path() / "store"));
  ASSERT_EQ(write_test_block(store, chain[0]), WriteResult::kWritten);
  std::filesystem::remove_all(dir.path() / "store");
  EXPECT_EQ(read_test_block(store, chain[0]), ReadBack::kMiss);
  EXPECT_EQ(write_test_block(store, chain[1]), WriteResult::kWritten);
  EXPECT_EQ(read_test_block(store, chain[1]), ReadBack::kRight);
}

}  // namespace
}  // namespace sluice
