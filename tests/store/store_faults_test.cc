// Disks that are full, fail, or refuse: no call throws, nothing half-written is left, and writing
// goes off with one warning.
#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "io/temp_dir.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

size_t count_files(const std::filesystem::path& dir, const std::string& suffix) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    count += entry.is_regular_file() && entry.path().string().ends_with(suffix);
  }
  return count;
}

FaultyFiles::Hook at_call(int64_t call, int error) {
  return [=](int64_t now) { return now == call ? error : 0; };
}

class StoreOnFaultyDisk : public ::testing::Test {
 protected:
  BlockStore& open() {
    BlockStoreOptions options = test_options(dir_.path());
    options.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    return store_.emplace(options, files_);
  }

  const TempDir dir_;
  FaultyFiles files_;
  std::vector<std::string> warnings_;
  const std::vector<TestBlock> chain_ = make_chain(test_format(), 8, 3);
  std::optional<BlockStore> store_;
};

// Writes of a block: tokens, three layers, the header.
TEST_F(StoreOnFaultyDisk, FullDiskTurnsWritingOffWithOneWarning) {
  for (int64_t call = 5; call < 10; ++call) {
    const TempDir dir;
    FaultyFiles files;
    files.on_write = at_call(call, ENOSPC);
    std::vector<std::string> warnings;
    BlockStoreOptions options = test_options(dir.path());
    options.on_warning = [&](const std::string& text) { warnings.push_back(text); };
    BlockStore store(options, files);
    EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
    EXPECT_EQ(write_test_block(store, chain_[1]), WriteResult::kFailed) << call;
    EXPECT_EQ(write_test_block(store, chain_[2]), WriteResult::kOff);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("No space left on device"), std::string::npos) << warnings[0];
    EXPECT_EQ(count_files(dir.path(), ".part"), 0u) << call;
    EXPECT_EQ(count_files(dir.path(), ".kv"), 1u) << call;
    EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kRight) << "reading goes on";
    EXPECT_EQ(read_test_block(store, chain_[1]), ReadBack::kMiss);
    EXPECT_FALSE(store.stats().is_writing);
  }
}

TEST_F(StoreOnFaultyDisk, OtherFaultsOfWritingLeaveNothingEither) {
  const auto expect_off = [&](const char* what) {
    BlockStore& store = open();
    EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kFailed) << what;
    EXPECT_EQ(write_test_block(store, chain_[1]), WriteResult::kOff) << what;
    EXPECT_EQ(count_files(dir_.path(), ".part") + count_files(dir_.path(), ".kv"), 0u) << what;
    EXPECT_EQ(warnings_.size(), 1u) << what;
    warnings_.clear();
  };
  const auto always = [](int error) { return [=](int64_t) { return error; }; };
  files_.on_write = always(EIO);
  expect_off("EIO");
  files_.on_write = {};
  files_.on_close = always(EDQUOT);
  expect_off("a network disk that tells close() that it is full");
  files_.on_close = {};
  files_.on_rename = always(EIO);
  expect_off("rename");
  files_.on_rename = {};
  files_.on_create = always(EROFS);
  expect_off("a disk that has become read-only");
}

TEST_F(StoreOnFaultyDisk, PassingFaultsSkipOneBlock) {
  for (const int error : {EMFILE, ENOMEM, EINTR}) {
    FaultyFiles files;
    files.on_create = at_call(0, error);
    const TempDir dir;
    BlockStore store(test_options(dir.path()), files);
    EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kFailed);
    EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten) << std::strerror(error);
    EXPECT_EQ(store.stats().num_failed, 1);
  }
}

// It may be taken away while the store is open, so writing stays on; but somebody has to know.
TEST_F(StoreOnFaultyDisk, AFileWhereAFolderShouldBeIsReportedOnceAndCounted) {
  BlockStore& store = open();
  dir_.write(test_format().fingerprint.folder(), "in the way");
  for (const TestBlock& block : chain_) {
    EXPECT_EQ(write_test_block(store, block), WriteResult::kFailed);
    EXPECT_EQ(read_test_block(store, block), ReadBack::kMiss);
  }
  EXPECT_EQ(store.stats().num_failed, 3);
  EXPECT_TRUE(store.stats().is_writing);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find("Not a directory; the block is skipped"), std::string::npos)
      << warnings_[0];
  std::filesystem::remove(dir_.path() / test_format().fingerprint.folder());
  EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
}

// A call of each kind while a block is read: the beginning, header, tokens, three layers.
TEST_F(StoreOnFaultyDisk, UnreadableSectorIsAMiss) {
  for (int64_t call = 0; call < 6; ++call) {
    const TempDir dir;
    FaultyFiles files;
    files.on_read = at_call(call, EIO);
    BlockStore store(test_options(dir.path()), files);
    ASSERT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
    EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kMiss) << call;
    EXPECT_EQ(count_files(dir.path() / "bad", ".kv"), 1u) << call;
    EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
    EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kRight) << call;
  }
}

TEST_F(StoreOnFaultyDisk, MissThatIsNotTheFilesFaultKeepsTheFile) {
  files_.on_open = at_call(0, EMFILE);
  BlockStore& store = open();
  ASSERT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
  EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kMiss);
  EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kRight);
  EXPECT_EQ(store.stats().num_bad, 0);
}

TEST_F(StoreOnFaultyDisk, BadFileThatCannotBeMovedIsNotReadAgain) {
  BlockStore& store = open();
  ASSERT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
  std::filesystem::resize_file(
      block_path(dir_.path(), test_format().fingerprint, chain_[0].place.key).whole(), 100);
  files_.on_rename = [](int64_t) { return EACCES; };
  EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kMiss);
  EXPECT_FALSE(store.contains(chain_[0].place.key));
  EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kMiss);
  EXPECT_EQ(store.stats().num_bad, 1);
  EXPECT_EQ(store.stats().num_misses, 2);
  files_.on_rename = {};
  EXPECT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
  EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kRight) << "replaced by a right one";
}

// A real limit of the system instead of an injected one.
TEST_F(StoreOnFaultyDisk, LimitOfFileSizes) {
  BlockStore& store = open();
  ASSERT_EQ(write_test_block(store, chain_[0]), WriteResult::kWritten);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit = {};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  rlimit limit = old_limit;
  limit.rlim_cur = 9000;
  setrlimit(RLIMIT_FSIZE, &limit);
  const WriteResult result = write_test_block(store, chain_[1]);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(result, WriteResult::kFailed);
  EXPECT_EQ(write_test_block(store, chain_[1]), WriteResult::kOff);
  EXPECT_EQ(count_files(dir_.path(), ".part"), 0u);
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(read_test_block(store, chain_[0]), ReadBack::kRight);
}

}  // namespace
}  // namespace sluice
