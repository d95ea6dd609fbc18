// The container: what it says of a good file, and that a damaged one is an error and nothing else.
// Values of tensors are judged in tests/model/gguf_test.cc.
#include "io/gguf/gguf_file.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/gguf/gguf_model.h"
#include "io/model_directory.h"
#include "io/open_bounds.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

std::filesystem::path golden_gguf(const std::string& name) {
  return testing::source_dir() / "tests/golden/gguf" / name;
}

template <typename T>
std::string bytes_of_number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string gguf_text(std::string_view text) {
  return bytes_of_number(uint64_t{text.size()}) + std::string(text);
}

// A file with the keys and tensors given as bytes.
std::string gguf_bytes(uint64_t num_tensors, uint64_t num_keys, std::string_view body,
                       uint32_t version = 3) {
  return "GGUF" + bytes_of_number(version) + bytes_of_number(num_tensors) +
         bytes_of_number(num_keys) + std::string(body);
}

// A key with an integer of 32 bits.
std::string number_key(std::string_view key, uint32_t value) {
  return gguf_text(key) + bytes_of_number(uint32_t{4}) + bytes_of_number(value);
}

// One dimension, F32.
std::string tensor_info(std::string_view name, uint64_t length, uint64_t offset,
                        uint32_t type = 0) {
  return gguf_text(name) + bytes_of_number(uint32_t{1}) + bytes_of_number(length) +
         bytes_of_number(type) + bytes_of_number(offset);
}

std::string gguf_error(const std::string& bytes, ErrorCode code = ErrorCode::kModel) {
  const TempDir dir;
  const std::filesystem::path path = dir.write("model.gguf", bytes);
  const std::string text = expect_error(code, [&] { const GgufFile file(path); });
  EXPECT_TRUE(contains(text, path.string()));
  return text;
}

TEST(GgufFile, ReadsKeysAndTensors) {
  const GgufFile file(golden_gguf("mixed.gguf"));
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_int("llama.block_count", 1, 10), 1);
  EXPECT_EQ(file.get_ints("llama.block_count", 1, 10), std::vector<int64_t>{1});
  EXPECT_EQ(file.get_double("llama.rope.freq_base"), 10000.0);
  EXPECT_FALSE(file.find_int("llama.none", 0, 1));
  ASSERT_EQ(file.tensors().size(), 16u);
  const GgufTensor* tensor = file.find_tensor("blk.0.attn_q.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->type->name, "Q4_K");
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{32, 256}));
  EXPECT_EQ(tensor->end - tensor->begin, 32u * 144u);
}

TEST(GgufFile, NamesTheKeyOfAWrongValue) {
  const GgufFile file(golden_gguf("mixed.gguf"));
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kModel, [&] { file.get_int("llama.block_count", 2, 9); }),
               "llama.block_count is 1; it must be an integer from 2 to 9"));
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kModel, [&] { file.get_string("llama.block_count"); }),
               "llama.block_count is 1; it must be a text"));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { file.get_double("none"); }),
                       "the metadata has no none"));
}

TEST(GgufFile, RefusesOtherFormats) {
  EXPECT_TRUE(contains(gguf_error(""), "the magic needs 4 bytes"));
  EXPECT_TRUE(contains(gguf_error("PK\3\4 and more"), "does not begin with \"GGUF\""));
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(0, 0, "", 1), ErrorCode::kUnsupported),
                       "GGUF version 1 is not supported"));
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(0, 0, "", 0x03000000), ErrorCode::kUnsupported),
                       "big-endian"));
}

TEST(GgufFile, RefusesAbsurdCounts) {
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(uint64_t{1} << 60, 0, "")), "tensors by its header"));
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(0, uint64_t{1} << 60, "")), "keys by its header"));
  const std::string list = gguf_text("a.list") + bytes_of_number(uint32_t{9}) +
                           bytes_of_number(uint32_t{8}) + bytes_of_number(uint64_t{1} << 61);
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(0, 1, list)), "key \"a.list\" is a list of"));
  const std::string text = bytes_of_number(uint64_t{1} << 62) + std::string(50, 'x');
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(0, 1, text)), "key 0 is a text of"));
}

TEST(GgufFile, RefusesWhatIsThereTwice) {
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(0, 2, number_key("a", 1) + number_key("a", 2))),
                       "key \"a\" is there twice"));
  EXPECT_TRUE(contains(
      gguf_error(gguf_bytes(
          2, 0, tensor_info("t", 1, 0) + tensor_info("t", 1, 32) + std::string(100, '\0'))),
      "tensor \"t\" is there twice"));
}

TEST(GgufFile, RefusesMisplacedTensors) {
  const std::string data(200, '\0');
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(1, 0, tensor_info("t", 1000, 0) + data)),
                       "tensor \"t\" has 4000 bytes at 0 of the data"));
  EXPECT_TRUE(
      contains(gguf_error(gguf_bytes(1, 0, tensor_info("t", 8, 4) + data)), "is aligned to 32"));
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(1, 0, tensor_info("t", 8, ~uint64_t{31}) + data)),
                       "tensor \"t\" has 32 bytes"));
  EXPECT_TRUE(contains(
      gguf_error(gguf_bytes(2, 0, tensor_info("a", 16, 0) + tensor_info("b", 8, 32) + data)),
      "tensors \"a\" and \"b\" share bytes"));
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(1, 0, tensor_info("t", uint64_t{1} << 62, 0) + data)),
                       "has a dimension of"));
}

TEST(GgufFile, NamesTypesThatItDoesNotRead) {
  const std::string data(400, '\0');
  EXPECT_TRUE(contains(
      gguf_error(gguf_bytes(1, 0, tensor_info("t", 256, 0, 11) + data), ErrorCode::kUnsupported),
      "tensor \"t\" is Q3_K; Sluice reads F32, F16, BF16, Q4_0"));
  EXPECT_TRUE(contains(gguf_error(gguf_bytes(1, 0, tensor_info("t", 100, 0, 12) + data)),
                       "rows of 100 elements; those of Q4_K are a multiple of 256"));
}

TEST(GgufShards, NamesWhatIsMissing) {
  const std::string first = "qwen2-group2-yarn-00001-of-00002.gguf";
  const std::string second = "qwen2-group2-yarn-00002-of-00002.gguf";
  EXPECT_EQ(gguf_shards(GgufFile(golden_gguf(first))).size(), 2u);
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kModel, [&] { gguf_shards(GgufFile(golden_gguf(second))); }),
               "it is file 2 of 2; give the first one"));
  const TempDir dir;
  const auto alone = dir.write(first, slurp(golden_gguf(first)));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { gguf_shards(GgufFile(alone)); }),
                       second + " is missing, file 2 of 2"));
}

// Everything but the tensors' values. An Error is as good as success; a crash is neither.
void open_all(const std::filesystem::path& path) {
  try {
    const Checkpoint checkpoint{ModelDirectory(path)};
    for (const std::string& name : checkpoint.names()) EXPECT_TRUE(checkpoint.has(name));
  } catch (const Error&) {
  }
}

// Each byte of the header with other values, each length, and fields of 4 and 8 bytes that are
// absurd: every open ends within a second and takes little memory.
TEST(GgufFuzz, DamagedFilesAreErrors) {
  const std::string good = slurp(golden_gguf("mixed.gguf"));
  const size_t header_bytes = good.find("blk.0.attn_output.bias") + 60;
  const TempDir dir;
  testing::OpenBounds bounds;
  const auto open = [&](const std::string& bytes) {
    const auto path = dir.write("model.gguf", bytes);
    bounds.run([&] { open_all(path); });
  };
  for (size_t at = 0; at < header_bytes; ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ (at % 2 == 0 ? 0x80 : 0x01));
    open(bytes);
    bytes[at] = '\xff';
    open(bytes);
    bytes.replace(at, 8, bytes_of_number(at % 3 == 0 ? ~uint64_t{0} : uint64_t{1} << (at % 64)));
    open(bytes);
    open(good.substr(0, at));
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 4; ++change) {
      bytes[random() % header_bytes] = static_cast<char>(random());
    }
    open(bytes);
  }
  bounds.expect_met();
}

}  // namespace
}  // namespace sluice
