// A model whose config.json has the sizes of heads for minference: it is used and reported, the
// options replace it, and other policies do not read it.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "sluice/inspect.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::sampled;

constexpr const char* kProfileModel = "llama-group2-linear";  // 2 layers, 4 query and 2 KV heads

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ModelProfile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::copy(testing::tiny_options(kProfileModel).model, directory_,
                          std::filesystem::copy_options::recursive);
    set_profile(read(mixed_));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Writes config.json with this as its first key.
  void set_profile(const std::string& value) const {
    std::string config =
        read(std::filesystem::path(testing::tiny_options(kProfileModel).model) / "config.json");
    config.insert(config.find('{') + 1, "\"sparse_attention_config\": " + value + ",");
    std::ofstream(directory_ / "config.json") << config;
  }

  static EngineOptions options_of(const std::string& model, const std::string& policy) {
    EngineOptions options = testing::tiny_options(kProfileModel);
    options.model = model;
    options.device = "cpu";
    options.kv.block_size = 128;
    options.sparse.policy = policy;
    if (policy != "full") options.sparse.threshold_tokens = 0;
    return options;
  }
  EngineOptions carrying(const std::string& policy = "minference+full") const {
    return options_of(directory_.string(), policy);
  }
  static EngineOptions plain() {
    return options_of(testing::tiny_options(kProfileModel).model, "minference+full");
  }

  static std::vector<std::string> with(const std::vector<std::string>& lines,
                                       const std::string& part) {
    std::vector<std::string> found;
    for (const std::string& line : lines) {
      if (line.find(part) != std::string::npos) found.push_back(line);
    }
    return found;
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) / "model_profile_test";
  const std::filesystem::path mixed_ =
      testing::source_dir() / "tests/fuzz/corpus/head_profile/mixed";
  const std::vector<Job> jobs_ = {{random_tokens(1000, 1), sampled(4, 1)}};
};

TEST_F(ModelProfile, IsUsedAndReported) {
  EngineOptions given = plain();
  given.sparse.profile = mixed_.string();
  const std::vector<RequestOutput> expected = run_engine(given, jobs_);
  expect_all_same(run_engine(carrying(), jobs_), expected, "from config.json");
  EXPECT_NE(run_engine(plain(), jobs_)[0].logprobs[0][0].logprob,
            expected[0].logprobs[0][0].logprob);

  const std::string sizes = "2 layers of 4 heads: 4 vertical_and_slash, 3 stream_llm";
  LlmEngine engine(carrying(), {.device = testing::make_test_device()});
  ASSERT_EQ(with(engine.reports().warnings(), sizes).size(), 1u);
  EXPECT_NE(with(engine.reports().warnings(), sizes)[0].find((directory_ / "config.json").string()),
            std::string::npos);
  EXPECT_EQ(with(plan_memory(carrying()).warnings, sizes).size(), 1u);
  // Who gives a file knows it.
  LlmEngine asked(given, {.device = testing::make_test_device()});
  EXPECT_EQ(with(asked.reports().warnings(), sizes).size(), 0u);
  EXPECT_EQ(with(asked.reports().notes(), sizes).size(), 1u);
}

TEST_F(ModelProfile, OptionsReplaceIt) {
  const auto change = [](EngineOptions options, auto set) {
    set(options.sparse);
    return options;
  };
  const auto verticals = [](SparseOptions& o) { o.vertical_tokens = 30; };
  const auto slashes = [](SparseOptions& o) { o.slash_tokens = 300; };
  const auto share = [](SparseOptions& o) { o.adaptive_budget = 0.2; };
  expect_all_same(run_engine(change(carrying(), verticals), jobs_),
                  run_engine(change(plain(), verticals), jobs_), "verticals");
  expect_all_same(run_engine(change(carrying(), slashes), jobs_),
                  run_engine(change(plain(), slashes), jobs_), "slashes");
  expect_all_same(run_engine(change(carrying(), share), jobs_),
                  run_engine(change(plain(), share), jobs_), "a share");
}

// Also where it is of another form.
TEST_F(ModelProfile, OtherPoliciesDoNotReadIt) {
  set_profile("{\"config_groups\": 3}");
  for (const std::string policy : {"full", "sampled+full"}) {
    EngineOptions options = carrying(policy);
    if (policy != "full") options.sparse.column_tokens = 0;
    LlmEngine engine(options, {.device = testing::make_test_device()});
    EXPECT_EQ(with(engine.reports().warnings(), "heads").size(), 0u);
  }
}

TEST_F(ModelProfile, OneThatDoesNotFitIsRefused) {
  const auto refused = [&](const std::string& value, ErrorCode code, const std::string& part) {
    set_profile(value);
    try {
      LlmEngine engine(carrying(), {.device = testing::make_test_device()});
      FAIL() << "not refused: " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos) << error.what();
    }
  };
  refused("{\"config_groups\": 3}", ErrorCode::kModel, "give another file with sparse_profile");
  refused("[{\"0\": [\"stream_llm\", 1, 2, 3]}]", ErrorCode::kInvalidArgument,
          "the model has 2 of 4");
}

}  // namespace
}  // namespace sluice
