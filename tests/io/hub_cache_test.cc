// Models by their names in a Hugging Face cache that tests lay out as huggingface_hub does.
#include "io/hub_cache.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/model_directory.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class HubCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
    setenv("HF_HUB_CACHE", dir_.path().c_str(), 1);
  }
  void TearDown() override { unsetenv("HF_HUB_CACHE"); }

  // A repository with one commit, whose config.json is a link to a blob; "": no refs/main.
  fs::path add(const std::string& folder, const std::string& commit, const std::string& main) {
    const fs::path repository = dir_.path() / folder;
    const fs::path snapshot = repository / "snapshots" / commit;
    fs::create_directories(snapshot);
    fs::create_directories(repository / "refs");
    fs::create_directories(repository / "blobs");
    dir_.write(folder + "/blobs/" + commit, "{}");
    fs::create_symlink("../../blobs/" + commit, snapshot / "config.json");
    if (!main.empty()) dir_.write(folder + "/refs/main", main);
    return snapshot;
  }

  TempDir dir_;
};

TEST_F(HubCacheTest, TheCacheIsWhereHuggingFaceHasIt) {
  EXPECT_EQ(hub_cache_directory(), dir_.path());
  unsetenv("HF_HUB_CACHE");
  setenv("HF_HOME", "/h", 1);
  EXPECT_EQ(hub_cache_directory(), "/h/hub");
  unsetenv("HF_HOME");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(hub_cache_directory(), "/x/huggingface/hub");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_TRUE(hub_cache_directory().string().ends_with("/.cache/huggingface/hub"));
}

TEST_F(HubCacheTest, TheSnapshotIsThatOfMain) {
  add("models--Qwen--Qwen3-0.6B", "0ld", "");
  const fs::path newer = add("models--Qwen--Qwen3-0.6B", "c0ffee", "c0ffee\n");
  const fs::path only = add("models--gpt2", "abc", "");
  EXPECT_EQ(find_in_hub_cache("Qwen/Qwen3-0.6B"), newer);
  EXPECT_EQ(find_in_hub_cache("gpt2"), only);
  EXPECT_EQ(find_model("gpt2"), only);
  EXPECT_EQ(ModelDirectory("Qwen/Qwen3-0.6B").path(), newer);
}

TEST_F(HubCacheTest, WhatIsNotThereIsNotFound) {
  add("models--a--two", "1", "");
  add("models--a--two", "2", "gone");
  add("models--a--evil", "1", "../../models--a--two");
  fs::create_directories(dir_.path() / "models--a--empty" / "snapshots");
  for (const char* name : {"a/two", "a/empty", "a/b", "", "/", "a/", "/b", "a/b/c", "../x", "a/..",
                           "a b", "models--a--two"}) {
    EXPECT_EQ(find_in_hub_cache(name), std::nullopt) << name;
    EXPECT_EQ(find_model(name), name);
  }
  // The only snapshot: what refs/main says is no commit.
  EXPECT_EQ(find_in_hub_cache("a/evil"), dir_.path() / "models--a--evil/snapshots/1");
  setenv("HF_HUB_CACHE", "/no/such/cache", 1);
  EXPECT_EQ(find_in_hub_cache("a/evil"), std::nullopt);
  EXPECT_TRUE(list_hub_cache().empty());
}

TEST_F(HubCacheTest, ADirectoryWins) {
  add("models--gpt2", "abc", "abc");
  const fs::path before = fs::current_path();
  TempDir here;
  fs::create_directory(here.path() / "gpt2");
  fs::current_path(here.path());
  EXPECT_EQ(find_model("gpt2"), "gpt2");
  fs::current_path(before);
}

TEST_F(HubCacheTest, ListsModels) {
  const fs::path b = add("models--b--some--thing", "1", "1");
  const fs::path a = add("models--a--x", "1", "1");
  add("datasets--a--y", "1", "1");
  dir_.write("version.txt", "1");
  const std::vector<HubModel> models = list_hub_cache();
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0].name, "a/x");
  EXPECT_EQ(models[0].snapshot, a);
  EXPECT_EQ(models[1].name, "b/some--thing");
  EXPECT_EQ(find_in_hub_cache(models[1].name), b);
}

TEST_F(HubCacheTest, AbsenceIsToldWithTheRemedy) {
  const std::string text =
      expect_error(ErrorCode::kModel, [] { ModelDirectory("Qwen/Qwen3-0.6B"); });
  EXPECT_TRUE(contains(text, "cache " + dir_.path().string()));
  EXPECT_TRUE(contains(text, "`hf download Qwen/Qwen3-0.6B`"));
}

}  // namespace
}  // namespace sluice
