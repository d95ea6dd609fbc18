// Models by name: in the Hugging Face cache, as a word of run and serve, and in the list of models.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/program_under_test.h"
#include "cli/tiny_program.h"
#include "io/json_type.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

using Words = std::vector<std::string>;

// A cache with the bundled model as org/needle, one of another family, and one without weights.
class NamedModels : public Program {
 protected:
  void SetUp() override {
    const fs::path needle = testing::source_dir() / "models/needle";
    const fs::path snapshot = add("models--org--needle");
    for (const auto& file : fs::directory_iterator(needle)) {
      if (file.is_regular_file()) {
        fs::create_symlink(file.path(), snapshot / file.path().filename());
      }
    }
    cache_.write(fs::relative(add("models--org--other") / "config.json", cache_.path()).string(),
                 R"({"architectures": ["MambaForCausalLM"], "torch_dtype": "float16"})");
    fs::copy_file(path("tiny/config.json"), add("models--org--shape") / "config.json");
  }

  fs::path add(const std::string& folder) {
    const fs::path snapshot = cache_.path() / folder / "snapshots" / "c0ffee";
    fs::create_directories(snapshot);
    fs::create_directory(cache_.path() / folder / "refs");
    cache_.write(folder + "/refs/main", "c0ffee");
    return snapshot;
  }

  Outcome in_cache(const Words& words, const Words& environment = {}) {
    Words all = {"HF_HUB_CACHE=" + cache_.path().string()};
    all.insert(all.end(), environment.begin(), environment.end());
    return run_sluice(cli::Invocation{.words = words, .environment = all});
  }

  TempDir cache_;
};

TEST_F(NamedModels, RunByTheirNameInTheCache) {
  const std::string prompt =
      "The secret number of the purple castle is 7391846. What is the secret number of the purple "
      "castle?";
  const Outcome outcome = in_cache({"run", "org/needle", "--chat", "--temperature", "0", prompt});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("7391846"), std::string::npos) << outcome.out;
  const Outcome ids = in_cache({"tokenize", "org/needle", "one two"});
  EXPECT_EQ(ids.out, in_cache({"tokenize", "-m", "org/needle", "one two"}).out);
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
}

TEST_F(NamedModels, AreListedWithTheReasonWhySomeDoNotRun) {
  const Outcome outcome = in_cache({"models"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part :
       {"org/needle", "Qwen3ForCausalLM", "bfloat16", "yes", "org/other", "MambaForCausalLM",
        "float16", "org/other does not run:", "org/shape does not run:", "--load-format dummy"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  }
  const auto list = nlohmann::json::parse(in_cache({"models", "--json"}).out);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].at("name"), "org/needle");
  EXPECT_TRUE(list[0].at("runs"));
  EXPECT_TRUE(list[0].at("can_chat"));
  EXPECT_GT(list[0].at("file_bytes"), 1 << 20);
  EXPECT_FALSE(list[1].at("runs"));
}

TEST_F(NamedModels, OfDirectoriesAreListed) {
  const std::string models = (testing::source_dir() / "models").string();
  const auto below = nlohmann::json::parse(in_cache({"models", "--json", models}).out);
  ASSERT_EQ(below.size(), 1u) << below;
  EXPECT_EQ(below[0].at("name"), models + "/needle");
  const Outcome one = in_cache({"models", models + "/needle"});
  EXPECT_NE(one.out.find("yes"), std::string::npos) << one.out;
  EXPECT_EQ(in_cache({"models", path("absent")}).exit_code, 2);
}

// A GGUF file is a model, and of several files the first; a directory with one of them stands for
// it.
TEST_F(NamedModels, OfGgufFilesAreListedAndRun) {
  const fs::path golden = testing::source_dir() / "tests/golden/gguf";
  const TempDir several, one;
  for (const char* name : {"qwen3-group2-tied.gguf", "qwen2-group2-yarn-00001-of-00002.gguf",
                           "qwen2-group2-yarn-00002-of-00002.gguf"}) {
    fs::copy_file(golden / name, several.path() / name);
  }
  const auto list =
      nlohmann::json::parse(in_cache({"models", "--json", several.path().string()}).out);
  ASSERT_EQ(list.size(), 2u) << list;
  EXPECT_EQ(list[0].at("architecture"), "qwen2");
  EXPECT_EQ(list[0].at("weight_type"), "BF16");
  EXPECT_GT(list[0].at("file_bytes"), 160'000);
  EXPECT_EQ(list[1].at("max_position_embeddings"), 512);
  fs::copy_file(golden / "mixed.gguf", one.path() / "mixed.gguf");
  const Outcome inspected = in_cache({"inspect", one.path().string()});
  EXPECT_NE(inspected.out.find("16 tensors, GGUF: BF16"), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("Q4_K"), std::string::npos) << inspected.out;
}

// A hybrid's file says what of it is not run, and each type of its tensors; experts count one by
// one.
TEST_F(NamedModels, AHybridsGgufFileIsInspected) {
  const fs::path file = testing::source_dir() / "tests/golden/gguf/mixed-hybrid.gguf";
  const Outcome inspected = in_cache({"inspect", file.string()});
  EXPECT_NE(inspected.out.find("53 tensors, GGUF: F32 "), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.out.find("4 tensors of vision and of draft layers (mtp) are not read"),
            std::string::npos)
      << inspected.out;
}

TEST_F(NamedModels, WhoHasNoneIsToldHowToGetOne) {
  const Outcome outcome = in_cache({"models"}, {"HF_HUB_CACHE=" + path("absent")});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("hf download"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sluice::cli
