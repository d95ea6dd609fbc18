// Model directories: single files and shards, and an error with a name for each way in which they
// can be wrong.
#include "io/model_directory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/expect_error.h"
#include "io/ordinary_user.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

using Shape = std::vector<int64_t>;

// A directory with an empty config.json to which tests add weights.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override { dir_.write("config.json", "{}"); }

  // Writes a file of F32 tensors, each [2] with the values {i, i + 1} for its place i.
  void write_shard(const std::string& file, const std::vector<std::string>& names) {
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < names.size(); ++i) values.push_back({float(i), float(i) + 1});
    std::vector<SafetensorsInput> tensors;
    for (size_t i = 0; i < names.size(); ++i) {
      tensors.push_back({names[i], DType::kF32, {2}, std::as_bytes(std::span(values[i]))});
    }
    write_safetensors(dir_.path() / file, tensors);
  }

  void write_index(const std::string& weight_map) {
    dir_.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":16},"weight_map":)" + weight_map + "}");
  }

  Checkpoint open() const { return Checkpoint(ModelDirectory(dir_.path())); }

  std::string error() const {
    return expect_error(ErrorCode::kModel, [&] { open(); });
  }

  TempDir dir_;
};

TEST(ModelDirectory, FindsFiles) {
  const TempDir dir;
  dir.write("config.json", "{}");
  const ModelDirectory model(dir.path());
  EXPECT_EQ(model.config_path(), dir.path() / "config.json");
  EXPECT_FALSE(model.find_file("generation_config.json").has_value());
  dir.write("generation_config.json", "{}");
  EXPECT_TRUE(model.find_file("generation_config.json").has_value());
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kModel, [&] { model.require_file("tokenizer.json"); }),
               dir.path().string() + " has no tokenizer.json"));
}

TEST(ModelDirectory, RefusesWhatIsNoModelDirectory) {
  const TempDir dir;
  const auto missing = dir.path() / "none";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { ModelDirectory{missing}; }),
                       missing.string() + " cannot be opened: No such file"));
  const auto file = dir.write("file", "x");
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { ModelDirectory{file}; }),
                       "is not a directory"));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { ModelDirectory{dir.path()}; }),
                       "has no config.json"));
}

TEST(ModelDirectory, DoesNotSayThatAClosedDirectoryHasNoConfig) {
  const TempDir dir;
  dir.write("config.json", "{}");
  chmod(dir.path().c_str(), 0);
  {
    const AsOrdinaryUser user;
    if (!user.is_one()) GTEST_SKIP() << "this user is root and may not become another one";
    EXPECT_TRUE(contains(
        expect_error(ErrorCode::kModel, [&] { ModelDirectory{dir.path()}; }),
        "cannot look at " + (dir.path() / "config.json").string() + ": Permission denied"));
  }
  chmod(dir.path().c_str(), 0700);
}

TEST_F(CheckpointTest, ReadsASingleFile) {
  write_shard("model.safetensors", {"a", "b"});
  const Checkpoint weights = open();
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights.num_bytes(), 16u);
  EXPECT_TRUE(weights.has("a"));
  EXPECT_FALSE(weights.has("c"));
  const CheckpointTensor b = weights.tensor("b", Shape{2});
  EXPECT_EQ(b.dtype, DType::kF32);
  float values[2];
  ASSERT_EQ(b.num_bytes, sizeof values);
  b.will_need();
  b.read(0, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  b.read(4, std::as_writable_bytes(std::span(values).first(1)));
  EXPECT_EQ(values[0], 2.0f) << "from an offset within the tensor";
}

TEST_F(CheckpointTest, ReadsShards) {
  write_shard("model-1.safetensors", {"a", "b"});
  write_shard("model-2.safetensors", {"c"});
  write_index(R"({"a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors"})");
  const Checkpoint weights = open();
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(weights.num_bytes(), 24u);
  float value = -1;
  weights.tensor("c", Shape{2}).read(0, std::as_writable_bytes(std::span(&value, 1)));
  EXPECT_EQ(value, 0.0f);
}

TEST_F(CheckpointTest, FollowsLinksOfADownloadCache) {
  const TempDir blobs;
  write_shard("model.safetensors", {"a"});
  std::filesystem::rename(dir_.path() / "model.safetensors", blobs.path() / "0123");
  std::filesystem::create_symlink(blobs.path() / "0123", dir_.path() / "model.safetensors");
  EXPECT_TRUE(open().has("a"));
}

TEST_F(CheckpointTest, RefusesADirectoryWithoutWeights) {
  EXPECT_TRUE(contains(error(), "has neither model.safetensors nor model.safetensors.index.json"));
}

TEST_F(CheckpointTest, RefusesABrokenSingleFile) {
  dir_.write("model.safetensors", "");
  EXPECT_TRUE(contains(error(), "model.safetensors is empty"));
  dir_.write("model.safetensors", "no safetensors file");
  EXPECT_TRUE(contains(error(), "model.safetensors: header size"));
}

// What a clone without LFS leaves of every large file.
TEST_F(CheckpointTest, NamesAPointerOfGitLfs) {
  const char* pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:"
      "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const auto names_it = [&](const std::string& file) {
    dir_.write(file, pointer);
    const std::string text = error();
    EXPECT_TRUE(contains(text, file + " is a Git LFS pointer"));
    EXPECT_TRUE(contains(text, "`git lfs pull`"));
  };
  names_it("model.safetensors.index.json");
  names_it("model.safetensors");
  const auto tokenizer = dir_.write("tokenizer.json", pointer);
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { read_model_file(tokenizer); }),
                       "tokenizer.json is a Git LFS pointer"));
}

TEST_F(CheckpointTest, SaysWhichOfTwoSetsOfWeightsIsRead) {
  write_shard("model.safetensors", {"a"});
  write_shard("model-1.safetensors", {"b"});
  EXPECT_TRUE(open().warnings().empty());
  write_index(R"({"b":"model-1.safetensors"})");
  ASSERT_EQ(open().warnings().size(), 1u);
  EXPECT_TRUE(contains(open().warnings()[0], "model.safetensors is read, as transformers does"));
  EXPECT_EQ(open().names(), std::vector<std::string>{"a"});
  write_index(R"({"b":"model-2.safetensors"})");
  EXPECT_TRUE(open().warnings().empty()) << "the index is a rest";
  write_index(R"({"a":"model.safetensors"})");
  EXPECT_TRUE(open().warnings().empty()) << "the index is of the file";
  dir_.write("model.safetensors.index.json", "{");
  EXPECT_TRUE(open().warnings().empty());
}

TEST_F(CheckpointTest, NamesAnAdapter) {
  dir_.write("adapter_config.json", "{}");
  EXPECT_TRUE(contains(error(), "is an adapter: it has adapter_config.json and no weights"));
  std::filesystem::remove(dir_.path() / "config.json");
  EXPECT_TRUE(contains(error(), "is an adapter: it has adapter_config.json and no config.json"));
  EXPECT_TRUE(contains(error(), "merge it into its base model"));
}

// By the tensors alone: old files have no quantization_config.
TEST_F(CheckpointTest, NamesTheMethodOfAQuantization) {
  for (const auto& [tensor, method] : std::vector<std::pair<std::string, std::string>>{
           {"q_proj.qweight", "GPTQ or AWQ"},
           {"q_proj.weight_packed", "compressed-tensors"},
           {"q_proj.weight_scale_inv", "FP8 in blocks"},
           {"q_proj.weight_scale", "FP8 or INT8"},
           {"q_proj.weight.absmax", "bitsandbytes"},
           {"q_proj.SCB", "bitsandbytes"},
           {"q_proj.scales", "MLX"}}) {
    write_shard("model.safetensors", {tensor, "q_proj.bias"});
    const Checkpoint weights = open();
    for (const auto& [name, size] :
         std::vector<std::pair<std::string, int64_t>>{{"q_proj.weight", 2}, {"q_proj.bias", 3}}) {
      const std::string text =
          expect_error(ErrorCode::kUnsupported, [&] { weights.tensor(name, Shape{size}); });
      EXPECT_TRUE(contains(text, "quantized with " + method));
      EXPECT_TRUE(contains(text, "use the BF16, F16 or F32 version"));
    }
  }
}

TEST_F(CheckpointTest, RefusesShardNamesThatLeaveTheDirectory) {
  write_shard("model-1.safetensors", {"a"});
  for (const char* name : {"../x", "/etc/passwd", "sub/model-1.safetensors", "..", ".", "",
                           "..\\\\x", "a\\u0000b", "./model-1.safetensors"}) {
    write_index("{\"a\":\"" + std::string(name) + "\"}");
    const std::string text = error();
    EXPECT_TRUE(contains(text, "it must be the name of a file in the model's directory")) << name;
    EXPECT_TRUE(contains(text, "weight_map: \"a\" is \"" + std::string(name).substr(0, 4)));
  }
}

// An incomplete download cache has dangling links: the file is not absent, and no other file may be
// used instead.
TEST_F(CheckpointTest, NamesALinkToNothing) {
  write_shard("model-1.safetensors", {"a"});
  write_index(R"({"a":"model-1.safetensors"})");
  EXPECT_TRUE(open().has("a"));
  for (const char* name :
       {"model.safetensors", "model.safetensors.index.json", "model-1.safetensors"}) {
    std::filesystem::remove(dir_.path() / name);
    std::filesystem::create_symlink("../blobs/0123", dir_.path() / name);
    EXPECT_TRUE(contains(error(), std::string(name) + " is a link to ../blobs/0123, which does"));
    std::filesystem::remove(dir_.path() / name);
    if (std::string_view(name) == "model.safetensors.index.json") {
      write_index(R"({"a":"model-1.safetensors"})");
    }
  }
}

// Text from a file cannot flood the screen, imitate a line of ours or move the cursor.
TEST_F(CheckpointTest, ShowsNamesAndShapesOfFilesShortAndPrintable) {
  const std::string evil = "x\\u001b[2J\\nsluice: all is well" + std::string(100'000, 'y');
  const auto is_tame = [](const std::string& text) {
    return text.size() < 1000 &&
           std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
  };
  for (const std::string& weight_map : {"{\"" + evil + "\":1}", "{\"" + evil + "\":\"a/b\"}",
                                        "{\"a\":\"/" + evil + "\"}", "{\"a\":\"" + evil + "\"}"}) {
    write_index(weight_map);
    EXPECT_PRED1(is_tame, error());
  }
  std::string ones = "1";
  for (int i = 0; i < 100'000; ++i) ones += ",1";
  for (const std::string& header :
       {R"({"a":{"dtype":"F32","shape":[)" + ones + R"(],"data_offsets":[0,4]}})",
        "{\"" + evil + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
        "{\"" + evil + R"(":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})",
        R"({"__metadata__":{")" + evil + "\":1}}"}) {
    std::string file(8, '\0');
    const uint64_t size = header.size();
    std::memcpy(file.data(), &size, sizeof size);
    dir_.write("model.safetensors", file + header + "data");
    EXPECT_PRED1(is_tame, expect_error(ErrorCode::kModel, [&] {
                   const Checkpoint weights = open();
                   weights.require_only({});
                   weights.tensor("a", Shape{1});
                 }));
  }
}

TEST_F(CheckpointTest, RefusesABrokenIndex) {
  write_index("{}");
  EXPECT_TRUE(contains(error(), "weight_map is empty"));
  write_index("{\"a\":1}");
  EXPECT_TRUE(contains(error(), "weight_map: \"a\" is 1; it must be the name of a file"));
  write_index("{\"a\":null}");
  EXPECT_TRUE(contains(error(), "weight_map: \"a\" is null; it must be the name of a file"));
  write_index("[]");
  EXPECT_TRUE(contains(error(), "weight_map is a list of 0; it must be an object"));
  write_index(R"({"a":"x","a":"y"})");
  EXPECT_TRUE(contains(error(), "the key \"a\" appears twice"));
  dir_.write("model.safetensors.index.json", "{}");
  EXPECT_TRUE(contains(error(), "weight_map is missing"));
  dir_.write("model.safetensors.index.json", "");
  EXPECT_TRUE(contains(error(), "not valid JSON"));
}

TEST_F(CheckpointTest, RefusesAMissingEmptyOrTruncatedShard) {
  write_shard("model-1.safetensors", {"a"});
  write_index(R"({"a":"model-1.safetensors","b":"model-2.safetensors"})");
  EXPECT_TRUE(contains(error(), "shard \"model-2.safetensors\" is missing from the directory"));
  dir_.write("model-2.safetensors", "");
  EXPECT_TRUE(contains(error(), "model-2.safetensors is empty"));
  write_shard("model-2.safetensors", {"b"});
  std::filesystem::resize_file(dir_.path() / "model-2.safetensors",
                               std::filesystem::file_size(dir_.path() / "model-2.safetensors") - 1);
  EXPECT_TRUE(contains(error(),
                       "model-2.safetensors: tensors need 8 bytes of data, but the file "
                       "has 7"));
}

TEST_F(CheckpointTest, RefusesATensorThatItsShardLacks) {
  write_shard("model-1.safetensors", {"a"});
  write_index(R"({"a":"model-1.safetensors","b":"model-1.safetensors"})");
  EXPECT_TRUE(contains(error(), "tensor \"b\" is not in shard \"model-1.safetensors\""));
  write_shard("model-2.safetensors", {"b"});
  write_shard("model-3.safetensors", {"c"});
  write_index(R"({"a":"model-1.safetensors","b":"model-3.safetensors","c":"model-2.safetensors"})");
  EXPECT_TRUE(contains(error(), "tensor \"b\" is not in shard \"model-3.safetensors\""));
}

TEST_F(CheckpointTest, RefusesATensorThatTheIndexLacks) {
  write_shard("model-1.safetensors", {"a", "stray"});
  write_index(R"({"a":"model-1.safetensors"})");
  EXPECT_TRUE(contains(error(),
                       "model-1.safetensors: tensor \"stray\" is not in "
                       "model.safetensors.index.json"));
}

TEST_F(CheckpointTest, RefusesATensorInTwoShards) {
  write_shard("model-1.safetensors", {"a", "b"});
  write_shard("model-2.safetensors", {"b", "c"});
  write_index(R"({"a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors"})");
  EXPECT_TRUE(
      contains(error(), "model-2.safetensors: tensor \"b\" is also in model-1.safetensors"));
}

TEST_F(CheckpointTest, RefusesMissingAndMisshapenTensors) {
  write_shard("model.safetensors", {"a"});
  const Checkpoint weights = open();
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { weights.tensor("b", Shape{2}); }),
                       "tensor \"b\" is missing"));
  for (const Shape& shape : {Shape{3}, Shape{2, 1}, Shape{}}) {
    EXPECT_TRUE(
        contains(expect_error(ErrorCode::kModel, [&] { weights.tensor("a", shape); }),
                 "tensor \"a\" has shape [2], but config.json makes it " + shape_string(shape)));
  }
}

TEST_F(CheckpointTest, NoticesThatAFileWasChanged) {
  write_shard("model.safetensors", {"a", "b"});
  const Checkpoint weights = open();
  weights.require_unchanged();
  write_shard("other.safetensors", {"a"});
  std::filesystem::copy_file(dir_.path() / "other.safetensors", dir_.path() / "model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { weights.require_unchanged(); }),
                       "model.safetensors was changed while it was read"));
}

TEST_F(CheckpointTest, RefusesUnsupportedTypesOnlyWhenUsed) {
  const std::string header = R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})";
  std::string file = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0');
  dir_.write("model.safetensors", file + header + "xx");
  const Checkpoint weights = open();
  EXPECT_TRUE(weights.has("q"));
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kUnsupported, [&] { weights.tensor("q", Shape{2}); }),
               "tensor \"q\" is F8_E4M3; convert the weights to BF16, F16 or F32"));
}

TEST_F(CheckpointTest, NamesTensorsThatNobodyExpects) {
  write_shard("model.safetensors", {"a", "b", "c", "d", "e"});
  const Checkpoint weights = open();
  weights.require_only(weights.names());
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel,
                                    [&] {
                                      weights.require_only(std::vector<std::string>{"a", "z"});
                                    }),
                       "4 tensors have no place in this architecture: \"b\", \"c\", \"d\", ..."));
}

}  // namespace
}  // namespace sluice
