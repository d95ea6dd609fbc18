// Files that are damaged, cut short, or belong to another block: every read is a miss or right, and
// a bad file is moved away, so that the block can be written again.
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/temp_dir.h"
#include "store/store_rig.h"
#include "support/sanitizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

// A store with one document, whose files tests replace.
class DamagedStore : public ::testing::Test {
 protected:
  fs::path path(const TestBlock& block) const {
    return block_path(dir_.path(), store_.format().fingerprint, block.place.key).whole();
  }
  fs::path bad(const TestBlock& block) const {
    return bad_path(dir_.path(), store_.format().fingerprint, block.place.key).whole();
  }
  void put(const TestBlock& block, const std::string& bytes) {
    std::ofstream(path(block), std::ios::binary | std::ios::trunc) << bytes;
  }
  // A miss that moves the file away; then the block is written anew and found.
  void expect_bad(const TestBlock& block, const std::string& what) {
    EXPECT_EQ(read_test_block(store_, block), ReadBack::kMiss) << what;
    EXPECT_FALSE(fs::exists(fs::symlink_status(path(block)))) << what;
    EXPECT_TRUE(fs::exists(fs::symlink_status(bad(block)))) << what;
    fs::remove_all(bad(block));
    EXPECT_FALSE(store_.contains(block.place.key)) << what;
    EXPECT_EQ(write_test_block(store_, block), WriteResult::kWritten) << what;
    EXPECT_EQ(read_test_block(store_, block), ReadBack::kRight) << what;
  }

  void SetUp() override {
    for (const TestBlock& block : chain_) {
      const std::vector<std::byte> bounds = bytes_from(block.place.key, 100, 1);
      const SummarySource source = {summary_, bounds};
      ASSERT_EQ(write_test_block(store_, block, {&source, 1}), WriteResult::kWritten);
    }
    original_ = slurp(path(chain_[0]));
    ASSERT_EQ(original_.size(), 12288u + 100);
  }

  const TempDir dir_;
  std::vector<std::string> warnings_;
  const SummaryFormat summary_ = {.name = "bounds", .page_tokens = 8, .num_bytes = 100};
  const std::vector<TestBlock> chain_ = make_chain(test_format(), 7, 2);
  std::string original_;
  BlockStore store_{{.dir = dir_.path(),
                     .max_bytes = 1 << 20,
                     .format = test_format(),
                     .on_warning = [this](const std::string& text) { warnings_.push_back(text); }}};
};

// Reads KV and the summary.
ReadBack read_all(BlockStore& store, const TestBlock& block, const SummaryFormat& summary) {
  std::vector<std::byte> kv(static_cast<size_t>(block.layout.kv_bytes())), bounds(100);
  const auto layers = layers_of(std::span(kv), block.layout);
  SummaryTarget target = {.format = summary, .bytes = bounds};
  if (!store.read({.place = block.place,
                   .tokens = block.tokens,
                   .layers = layers,
                   .summaries = {&target, 1}})) {
    return ReadBack::kMiss;
  }
  const bool is_right =
      kv == block.kv() && target.is_found && bounds == bytes_from(block.place.key, 100, 1);
  return is_right ? ReadBack::kRight : ReadBack::kWrong;
}

// Bytes that mean nothing lie between sections; all others must be noticed.
bool is_gap(size_t i) { return (i >= 4096 + 64 && i < 8192) || (i >= 8192 + 3000 && i < 12288); }

TEST_F(DamagedStore, NoticesAFlippedBitInEverySection) {
  const size_t step = kSanitized ? 97 : 11;  // with every border
  std::vector<size_t> places = {0, 4095, 4096, 4159, 8192, 9191, 9192, 11191, 12288, 12387};
  for (size_t i = 0; i < original_.size(); i += step) places.push_back(i);
  for (const size_t i : places) {
    std::string damaged = original_;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    put(chain_[0], damaged);
    EXPECT_EQ(read_all(store_, chain_[0], summary_), is_gap(i) ? ReadBack::kRight : ReadBack::kMiss)
        << "byte " << i;
  }
  ASSERT_EQ(warnings_.size(), 1u) << "the others are counted";
  EXPECT_GT(store_.stats().num_bad, 50);
}

TEST_F(DamagedStore, NoticesTruncationAtEveryBorder) {
  for (const size_t border : {size_t{0}, size_t{8}, size_t{4096}, size_t{4160}, size_t{8192},
                              size_t{9192}, size_t{11192}, size_t{12288}, original_.size()}) {
    for (const int64_t offset : {-1, 0, 1}) {
      const int64_t size = static_cast<int64_t>(border) + offset;
      if (size < 0 || size == std::ssize(original_)) continue;
      std::string cut = original_;
      cut.resize(static_cast<size_t>(size), 'x');
      put(chain_[0], cut);
      expect_bad(chain_[0], "cut to " + std::to_string(size));
    }
  }
}

TEST_F(DamagedStore, NoticesOtherFilesUnderTheName) {
  put(chain_[0], "");
  expect_bad(chain_[0], "empty");
  put(chain_[0], std::string(original_.size(), '\0'));
  expect_bad(chain_[0], "zeros, as after a power cut");
  put(chain_[0], slurp(path(chain_[1])));
  expect_bad(chain_[0], "another block");
}

// The store makes regular files alone, so it does not move or replace anything else.
TEST_F(DamagedStore, LeavesWhatIsNoFileUnderTheName) {
  const auto expect_left = [&](const std::string& what) {
    EXPECT_EQ(read_test_block(store_, chain_[0]), ReadBack::kMiss) << what;
    EXPECT_FALSE(store_.contains(chain_[0].place.key)) << what;
    EXPECT_EQ(write_test_block(store_, chain_[0]), WriteResult::kFailed) << what;
    EXPECT_TRUE(fs::exists(fs::symlink_status(path(chain_[0])))) << what;
    EXPECT_FALSE(fs::exists(fs::symlink_status(bad(chain_[0])))) << what;
    fs::remove(path(chain_[0]));
    EXPECT_EQ(write_test_block(store_, chain_[0]), WriteResult::kWritten) << what;
    EXPECT_EQ(read_test_block(store_, chain_[0]), ReadBack::kRight) << what;
    fs::remove(path(chain_[0]));
  };
  fs::remove(path(chain_[0]));
  fs::create_symlink(path(chain_[1]), path(chain_[0]));
  expect_left("a link");
  ASSERT_EQ(mkfifo(path(chain_[0]).c_str(), 0600), 0);
  expect_left("a FIFO");
  fs::create_directory(path(chain_[0]));
  expect_left("a folder");
  EXPECT_EQ(store_.stats().num_failed, 3);
  EXPECT_EQ(warnings_.size(), 2u) << "the first bad file, the first block that was skipped";
}

// Right in itself, but of another model: the same tokens, and even the same folder.
TEST_F(DamagedStore, NoticesAnotherModelsBlock) {
  const TempDir other_dir;
  BlockStore other(test_options(other_dir.path(), test_format("another model")));
  TestBlock foreign = make_chain(other.format(), 7, 1)[0];
  ASSERT_EQ(foreign.tokens, chain_[0].tokens);
  ASSERT_EQ(write_test_block(other, foreign), WriteResult::kWritten);
  put(chain_[0],
      slurp(block_path(other_dir.path(), other.format().fingerprint, foreign.place.key).whole()));
  expect_bad(chain_[0], "another fingerprint");

  // Another fingerprint over the same key, with right checksums.
  HeaderBytes header;
  std::memcpy(header.data(), original_.data(), header.size());
  BlockHeader decoded = *decode_header(header).header;
  decoded.format.fingerprint = other.format().fingerprint;
  header = encode_header(decoded);
  std::string forged = original_;
  std::memcpy(forged.data(), header.data(), header.size());
  put(chain_[0], forged);
  expect_bad(chain_[0], "a fingerprint that does not belong to the key");
}

// What is asked for has the key of other tokens: a caller's mistake, or a collision of hashes.
TEST_F(DamagedStore, ComparesTokensOneByOne) {
  TestBlock asked = chain_[0];
  asked.tokens[15] += 1;
  EXPECT_EQ(read_test_block(store_, asked), ReadBack::kMiss);
  asked = chain_[0];
  asked.place.position += 16;
  EXPECT_EQ(read_test_block(store_, asked), ReadBack::kMiss);
}

TEST_F(DamagedStore, CheckOfAFileSaysWhatIsWrong) {
  StoreFiles files;
  const auto faults = [&] {
    std::vector<std::string> texts;
    for (const StoredFile& file : list_store(dir_.path()).blocks) {
      texts.push_back(check_stored_file(files, file));
    }
    std::sort(texts.begin(), texts.end());
    return texts;
  };
  EXPECT_EQ(faults(), (std::vector<std::string>{"", ""}));
  std::string damaged = original_;
  damaged[9000] ^= 1;
  put(chain_[0], damaged);
  EXPECT_EQ(faults(), (std::vector<std::string>{"", "kv: its checksum does not agree"}));
  damaged = original_;
  damaged[12300] ^= 1;
  put(chain_[0], damaged);
  EXPECT_EQ(faults(), (std::vector<std::string>{"", "bounds: its checksum does not agree"}));
  put(chain_[0], slurp(path(chain_[1])));
  EXPECT_EQ(faults(), (std::vector<std::string>{"", "header: another key than the file's name"}));
}

}  // namespace
}  // namespace sluice
