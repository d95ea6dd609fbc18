// Profiles of heads: the published form, what heads of a group need together, models that carry
// one, and the text of every error.
#include "attention/head_profile.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "core/error.h"

namespace sluice {
namespace {

constexpr std::string_view kTwoLayers =
    R"([{"0": ["vertical_and_slash", 1000, 6096, 0.96], "1": ["stream_llm", 100, 800, 1]},
        {"1": ["block_sparse", 100, 800, 0.5], "0": ["vertical_and_slash", 30, 800, 0.99]}])";

void expect_pattern(const ProfiledHead& pattern, HeadKind kind, int32_t first, int32_t second) {
  EXPECT_EQ(pattern.kind, kind);
  EXPECT_EQ(pattern.num_verticals, first);
  EXPECT_EQ(pattern.num_slashes, second);
}

void expect_error(const std::function<void()>& act, ErrorCode code,
                  const std::vector<std::string>& parts) {
  try {
    act();
    FAIL() << "no error: " << parts[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(HeadProfile, ReadsLayersOfHeads) {
  const HeadProfile profile = parse_head_profile(kTwoLayers, "p.json");
  EXPECT_EQ(profile.name(), "p.json");
  EXPECT_EQ(profile.num_layers(), 2);
  EXPECT_EQ(profile.num_heads(), 2);
  expect_pattern(profile.at(0, 0), HeadKind::kVerticalSlash, 1000, 6096);
  expect_pattern(profile.at(0, 1), HeadKind::kStream, 100, 800);
  expect_pattern(profile.at(1, 0), HeadKind::kVerticalSlash, 30, 800);
  expect_pattern(profile.at(1, 1), HeadKind::kBlockSparse, 100, 800);
  EXPECT_EQ(profile.describe(),
            "2 layers of 2 heads: 2 vertical_and_slash, 1 stream_llm, 1 block_sparse");
}

// Ten heads and more: keys are numbers, not words in alphabetical order.
TEST(HeadProfile, HeadsAreInTheOrderOfTheirNumbers) {
  std::string text = "[{";
  for (int head = 11; head >= 0; --head) {
    text += "\"" + std::to_string(head) + R"(": ["vertical_and_slash", )" + std::to_string(head) +
            (head == 0 ? ", 1, 1]}]" : ", 1, 1], ");
  }
  const HeadProfile profile = parse_head_profile(text, "p");
  ASSERT_EQ(profile.num_heads(), 12);
  for (int32_t head = 0; head < 12; ++head) EXPECT_EQ(profile.at(0, head).num_verticals, head);
}

TEST(HeadProfile, AGroupHasTheLargestSizesOfEachKind) {
  const HeadProfile profile = parse_head_profile(
      R"([{"0": ["vertical_and_slash", 50, 200, 1], "1": ["vertical_and_slash", 30, 384, 1],
           "2": ["stream_llm", 100, 400, 1], "3": ["stream_llm", 200, 300, 1],
           "4": ["block_sparse", 9, 9, 1]}])",
      "p");
  const HeadGroup lines = profile.group(0, 0, 2);
  EXPECT_TRUE(lines.has_lines);
  EXPECT_EQ(lines.num_verticals, 50);
  EXPECT_EQ(lines.num_slashes, 384);
  EXPECT_EQ(lines.sink_tokens, 0);
  EXPECT_EQ(lines.recent_tokens, -1);
  EXPECT_FALSE(lines.has_tiles);
  const HeadGroup windows = profile.group(0, 2, 2);
  EXPECT_FALSE(windows.has_lines);
  EXPECT_EQ(windows.num_verticals, 0);
  EXPECT_EQ(windows.sink_tokens, 200);
  EXPECT_EQ(windows.recent_tokens, 400);
  const HeadGroup all = profile.group(0, 0, 5);
  EXPECT_TRUE(all.has_lines && all.has_tiles);
  EXPECT_EQ(all.num_verticals, 50);
  EXPECT_EQ(all.recent_tokens, 400);
}

TEST(HeadProfile, IsFoundInsideAConfiguration) {
  const std::string list = R"([{"0": ["vertical_and_slash", 9192, 14288, 0.69]}])";
  for (const std::string& text :
       {R"({"hidden_size": 1, "sparse_attention_config": )" + list + "}",
        R"({"dual_chunk_attention_config": {"sparse_attention_config": )" + list + "}}",
        R"({"sparse_attention_config": null, "dual_chunk_attention_config":
            {"sparse_attention_config": )" +
            list + "}}"}) {
    expect_pattern(parse_head_profile(text, "config.json").at(0, 0), HeadKind::kVerticalSlash, 9192,
                   14288);
  }
}

TEST(HeadProfile, NamesWhatIsWrong) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    expect_error([&] { parse_head_profile(text, "p.json"); }, ErrorCode::kModel, parts);
  };
  const auto head = [&](const std::string& entry, const std::vector<std::string>& parts) {
    std::vector<std::string> all = {"p.json: layer 1, head 1: "};
    all.insert(all.end(), parts.begin(), parts.end());
    const std::string good = R"(["vertical_and_slash", 1, 2, 0.5])";
    refused(R"([{"0": )" + good + R"(, "1": )" + good + R"(}, {"0": )" + good + R"(, "1": )" +
                entry + "}]",
            all);
  };
  head(R"(["a_shape", 1, 2, 3])", {"kind is \"a_shape\"", "vertical_and_slash", "block_sparse"});
  head(R"([4, 1, 2, 3])", {"kind is 4"});
  head(R"(["stream_llm", -1, 2, 3])", {"first size is -1", "from 0 to 1048576"});
  head(R"(["stream_llm", 1.5, 2, 3])", {"first size is 1.5"});
  head(R"(["stream_llm", 1048577, 2, 3])", {"first size is 1048577"});
  head(R"(["stream_llm", 18446744073709551615, 2, 3])", {"first size is 18446744073709551615"});
  head(R"(["stream_llm", 1, "2", 3])", {"second size is \"2\""});
  head(R"(["stream_llm", 1, 2, null])", {"score is null"});
  head(R"(["stream_llm", 1, 2])", {"found a list of 3", "[kind, first size"});
  head(R"("stream_llm")", {"found \"stream_llm\""});

  const std::string good = R"({"0": ["vertical_and_slash", 1, 2, 0.5]})";
  refused("[" + good + ", {}]", {"layer 1: found an object of 0"});
  refused("[" + good + ", 7]", {"layer 1: found 7"});
  refused(R"([{"1": ["vertical_and_slash", 1, 2, 0.5]}])",
          {"layer 0, head 0: missing", "from \"0\" to \"0\""});
  refused(R"([{"0": ["stream_llm", 1, 2, 3], "01": ["stream_llm", 1, 2, 3]}])",
          {"layer 0, head 1: missing"});
  refused("[" + good + R"(, {"0": ["stream_llm", 1, 2, 3], "1": ["stream_llm", 1, 2, 3]}])",
          {"layer 1: found 2 heads, but layer 0 has 1"});
  refused("[]", {"the document is a list of 0", "a list with an object for each layer"});
  refused("3", {"the document is 3"});
  refused("{}", {"sparse_attention_config is missing", "another file with sparse_profile"});
  refused(R"({"sparse_attention_config": {"config_groups": {}}})",
          {"sparse_attention_config is an object of 1"});
  refused("[", {"p.json: byte"});
}

TEST(HeadProfile, MustBeOfTheModel) {
  const HeadProfile profile = parse_head_profile(kTwoLayers, "p.json");
  EXPECT_NO_THROW(profile.require_model(2, 2));
  for (const auto& [layers, heads] : {std::pair{3, 2}, {2, 4}}) {
    expect_error([&] { profile.require_model(layers, heads); }, ErrorCode::kInvalidArgument,
                 {"p.json", "of 2 layers of 2 query heads",
                  "has " + std::to_string(layers) + " of " + std::to_string(heads),
                  "sparse_vertical_tokens"});
  }
  expect_error([] { read_head_profile("/nowhere/p.json"); }, ErrorCode::kIo, {"/nowhere/p.json"});
}

class ModelProfile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void write(const char* name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / "head_profile_test";
};

TEST_F(ModelProfile, IsConfigJsonsOrAFileBesideIt) {
  write("config.json", R"({"hidden_size": 64})");
  EXPECT_EQ(find_model_profile(directory_), std::nullopt);
  write("sparse_attention_config.json", std::string(kTwoLayers));
  EXPECT_EQ(find_model_profile(directory_), directory_ / "sparse_attention_config.json");
  write("config.json", R"({"dual_chunk_attention_config": {"sparse_attention_config": []}})");
  EXPECT_EQ(find_model_profile(directory_), directory_ / "config.json");
  write("config.json", R"({"sparse_attention_config": null})");
  EXPECT_EQ(find_model_profile(directory_), directory_ / "sparse_attention_config.json");
  expect_error([&] { find_model_profile(directory_ / "none"); }, ErrorCode::kModel, {"none"});
}

}  // namespace
}  // namespace sluice
