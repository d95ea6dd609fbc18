// The bytes of a file against the table of docs/kv_store.md, and headers that must be refused.
#include "store/block_file.h"

#include <bit>
#include <cstring>

#include <gtest/gtest.h>
#include <xxhash.h>

#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "store/store_rig.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

const std::vector<SummaryFormat> kSummaries = {
    {.name = "quest.bounds", .page_tokens = 8, .num_bytes = 5000},
    {.name = "mean", .page_tokens = 16, .num_bytes = 1}};

BlockHeader some_header() {
  BlockHeader header =
      make_header(test_format(), make_chain(test_format(), 1, 3)[2].place, kSummaries);
  header.tokens.checksum = 1;
  header.kv.checksum = ~uint64_t{0};
  header.summaries[1].section.checksum = 3;
  return header;
}

template <typename T>
T value_at(const std::string& file, size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

uint64_t xxh3(const std::string& file, size_t offset, size_t size) {
  return XXH3_64bits(file.data() + offset, size);
}

std::string text_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

// Read by offsets that are written out here, not by the code under test.
TEST(BlockFile, HasTheDocumentedBytes) {
  const TempDir dir;
  BlockStore store(test_options(dir.path()));
  const TestBlock block = make_chain(test_format(), 5, 2)[1];
  const std::vector<std::byte> bounds(5000, std::byte{7}), mean(1, std::byte{9});
  const std::vector<SummarySource> summaries = {{kSummaries[0], bounds}, {kSummaries[1], mean}};
  ASSERT_EQ(write_test_block(store, block, summaries), WriteResult::kWritten);

  const std::string hex = block.place.key.hex();
  const std::string file = slurp(dir.path() / store.format().fingerprint.hex().substr(0, 16) /
                                 hex.substr(0, 2) / (hex + ".kv"));
  ASSERT_EQ(file.size(), 20481u) << "8192 + 3000, 12288 + 5000, 20480 + 1";
  EXPECT_EQ(file.substr(0, 8), "SLUICEKV");
  EXPECT_EQ(value_at<uint32_t>(file, 8), 1u);
  EXPECT_EQ(value_at<uint32_t>(file, 12), 2u) << "summaries";
  EXPECT_EQ(value_at<uint64_t>(file, 16), file.size());
  EXPECT_EQ(file.substr(24, 32), text_of(store.format().fingerprint));
  EXPECT_EQ(file.substr(56, 32), text_of(block.place.key));
  EXPECT_EQ(file.substr(88, 32), text_of(block.place.parent));
  EXPECT_EQ(value_at<uint64_t>(file, 120), 16u) << "position";
  EXPECT_EQ(value_at<uint32_t>(file, 128), 16u);
  EXPECT_EQ(value_at<uint32_t>(file, 132), 3u);
  EXPECT_EQ(value_at<uint64_t>(file, 136), 1000u);
  const auto expect_section = [&](size_t at, uint64_t offset, uint64_t size) {
    EXPECT_EQ(value_at<uint64_t>(file, at), offset);
    EXPECT_EQ(value_at<uint64_t>(file, at + 8), size);
    EXPECT_EQ(value_at<uint64_t>(file, at + 16), xxh3(file, offset, size)) << offset;
  };
  expect_section(144, 4096, 64);
  expect_section(168, 8192, 3000);
  expect_section(192 + 32, 12288, 5000);
  expect_section(248 + 32, 20480, 1);
  EXPECT_STREQ(file.data() + 192, "quest.bounds");
  EXPECT_EQ(value_at<uint32_t>(file, 192 + 24), 8u);
  EXPECT_EQ(value_at<uint64_t>(file, 4088), xxh3(file, 0, 4088));
  EXPECT_EQ(std::memcmp(file.data() + 4096, block.tokens.data(), 64), 0);
  EXPECT_EQ(std::memcmp(file.data() + 8192, block.kv().data(), 3000), 0);
}

// Files of the fuzzer's corpus: a script wrote them from the table, without code of Sluice.
TEST(BlockFile, ReadsWhatAnotherProgramWrote) {
  for (const char* name : {"plain", "summaries"}) {
    const auto path = testing::source_dir() / "tests/fuzz/corpus/stored_block" / name;
    StoreFiles files;
    int fd = -1;
    uint64_t num_bytes = 0;
    ASSERT_EQ(files.open({path.parent_path(), path.filename()}, &fd, &num_bytes), 0) << path;
    const StoreFile file(files, fd);
    BlockReader reader(files, fd, num_bytes);
    EXPECT_EQ(reader.open(), "") << name;
    EXPECT_EQ(reader.check(), "") << name;
    EXPECT_EQ(reader.tokens().at(1), 101);
  }
}

TEST(BlockFile, HeaderReadsBack) {
  const BlockHeader header = some_header();
  const HeaderBytes bytes = encode_header(header);
  const DecodedHeader decoded = decode_header(bytes);
  ASSERT_TRUE(decoded.header) << decoded.fault;
  EXPECT_EQ(decoded.header->format, header.format);
  EXPECT_EQ(decoded.header->place, header.place);
  ASSERT_EQ(decoded.header->summaries.size(), 2u);
  EXPECT_EQ(decoded.header->summaries[0].format, kSummaries[0]);
  EXPECT_EQ(decoded.header->summaries[1].section.checksum, 3u);
  EXPECT_EQ(encode_header(*decoded.header), bytes);
}

TEST(BlockFile, EveryBitOfTheHeaderCounts) {
  HeaderBytes bytes = encode_header(some_header());
  for (size_t i = 0; i < bytes.size(); ++i) {
    const std::byte before = bytes[i];
    bytes[i] ^= static_cast<std::byte>(1 << i % 8);
    EXPECT_FALSE(decode_header(bytes).header) << "byte " << i;
    bytes[i] = before;
  }
  for (const size_t size : {size_t{0}, size_t{8}, size_t{4095}}) {
    EXPECT_EQ(decode_header(std::span(bytes).first(size)).fault, "header: the file is shorter");
  }
}

// A forger, or a defect of another version, can give any numbers a right checksum.
TEST(BlockFile, RefusesImpossibleNumbersWithARightChecksum) {
  const auto fault_of = [](size_t at, size_t size, uint64_t value) {
    HeaderBytes bytes = encode_header(some_header());
    std::memcpy(bytes.data() + at, &value, size);
    const uint64_t checksum = XXH3_64bits(bytes.data(), 4088);
    std::memcpy(bytes.data() + 4088, &checksum, 8);
    return decode_header(bytes).fault;
  };
  EXPECT_EQ(fault_of(8, 4, 1), "") << "the version that it has";
  EXPECT_EQ(fault_of(8, 4, 2), "header: version 2, and this program reads 1");
  EXPECT_EQ(fault_of(0, 8, 0), "header: not a stored block");
  const std::string sizes = "header: impossible sizes", sections = "header: other sections";
  for (const uint64_t tokens : {uint64_t{0}, uint64_t{7}, uint64_t{0xffffffff}}) {
    EXPECT_NE(fault_of(128, 4, tokens), "") << tokens;
  }
  EXPECT_EQ(fault_of(132, 4, 0), sizes);
  EXPECT_EQ(fault_of(132, 4, 0xffffffff), sizes);
  EXPECT_EQ(fault_of(136, 8, ~uint64_t{0}), sizes);
  EXPECT_EQ(fault_of(136, 8, uint64_t{1} << 62), sizes) << "times 3 is over 2^63";
  EXPECT_EQ(fault_of(120, 8, 17), sizes) << "position inside of a block";
  EXPECT_EQ(fault_of(120, 8, ~uint64_t{15}), sizes);
  EXPECT_EQ(fault_of(12, 4, 33), sizes);
  EXPECT_EQ(fault_of(12, 4, 1), sections) << "a summary that is not counted";
  EXPECT_EQ(fault_of(12, 4, 3), "header: an impossible summary");
  EXPECT_EQ(fault_of(16, 8, 1), sections);
  EXPECT_EQ(fault_of(144, 8, 0), sections) << "tokens on the header";
  EXPECT_EQ(fault_of(168, 8, 4096), sections) << "KV on the tokens";
  EXPECT_EQ(fault_of(224 + 8, 8, ~uint64_t{0}), "header: an impossible summary");
  EXPECT_EQ(fault_of(192, 1, '/'), "header: an impossible summary");
  EXPECT_EQ(fault_of(2000, 8, 1), sections) << "a byte without a meaning";
}

TEST(BlockFile, RefusesLayoutsOfNoBlock) {
  for (const StoreLayout& layout :
       {StoreLayout{.block_tokens = 0, .num_layers = 1, .layer_bytes = 1},
        StoreLayout{.block_tokens = 1, .num_layers = -1, .layer_bytes = 1},
        StoreLayout{.block_tokens = 1, .num_layers = 1, .layer_bytes = 0},
        StoreLayout{.block_tokens = 1, .num_layers = 2, .layer_bytes = uint64_t{1} << 40}}) {
    EXPECT_TRUE(
        contains(expect_error(ErrorCode::kInvalidArgument, [&] { validate_layout(layout); }),
                 "is not possible"));
  }
  validate_layout(kTestLayout);
}

}  // namespace
}  // namespace sluice
