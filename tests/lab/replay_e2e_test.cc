// Page lists from one bench to another, as programs: sluice-lab overlap writes them, sluice-lab
// sparse and sluice-lab speculative read them. And what sluice-lab overlap says about an engine
// with hot pages.
#include <filesystem>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"
#include "io/file.h"
#include "io/temp_dir.h"

namespace sluice::lab {

using namespace cli;  // helpers of tests

namespace {

// 1024 tokens, 128 chosen by score in pages of 16.
class Replay : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    recorded_ = new Json(json_of(overlap({"--budgets", "128", "--record", lists()})));
  }
  static void TearDownTestSuite() {
    delete recorded_;
    delete directory_;
  }

  static std::string lists() { return (directory_->path() / "lists.bin").string(); }
  static Words overlap(const Words& words) {
    return joined({"overlap", model_dir(), "--device", "cpu", "--lengths", "1K", "--steps", "6",
                   "--sparse-page-tokens", "16"},
                  words);
  }
  static Words sparse(const Words& words) {
    return joined({"sparse", model_dir(), "--device", "cpu", "--repeats", "0", "--decode-tokens",
                   "9", "--num-kv-slots", "3", "--kv-slot-blocks", "2", "--kv-cache-bytes", "64M",
                   "--block-size", "64", "--sparse-page-tokens", "16"},
                  words);
  }

  static TempDir* directory_;
  static Json* recorded_;  // what the recording command printed
};
TempDir* Replay::directory_ = nullptr;
Json* Replay::recorded_ = nullptr;

TEST_F(Replay, RecordingChangesNoNumber) {
  EXPECT_EQ(json_of(overlap({"--budgets", "128"})).at("results"), recorded_->at("results"));
  const std::string file = read_file(lists());
  EXPECT_EQ(file.substr(0, 8), "SLUICEPL");
  constexpr size_t kPages = size_t{6} * 6 * 2 * 8;  // steps, layers, heads, pages of a list
  EXPECT_EQ(file.size(), 52 + std::string("needle").size() + kPages + 8);
}

// The table names the rows and where their lists come from; what is read is what was read before.
TEST_F(Replay, RowsOfQuestReadTheRecordedLists) {
  const Words words = sparse({"--lengths", "2K", "--policies", "full,full+quest,full+streaming",
                              "--budgets", "128", "--modes", "off,chunked"});
  const Json chosen = json_of(words);
  EXPECT_TRUE(chosen.at("replay").is_null());
  const Json json = json_of(joined(words, {"--replay", lists()}));
  const Json& replay = json.at("replay");
  EXPECT_EQ(replay.at("model"), "needle");
  EXPECT_EQ(replay.at("first_position"), 1024 + 16) << "after the steps to warm up";
  EXPECT_EQ(replay.at("steps"), 6);
  EXPECT_EQ(replay.at("layers"), 6);
  EXPECT_EQ(replay.at("lists_per_layer"), 2);
  EXPECT_EQ(replay.at("budget_tokens"), 128);
  EXPECT_EQ(replay.at("page_tokens"), 16);
  ASSERT_EQ(json.at("results").size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const Json& row = json.at("results")[i];
    const Json& other = chosen.at("results")[i];
    const bool is_quest = i % 3 == 1;
    EXPECT_EQ(row.at("replayed"), is_quest);
    EXPECT_EQ(other.at("replayed"), false);
    EXPECT_EQ(row.at("name"), other.at("name").get<std::string>() + (is_quest ? ", replayed" : ""));
    EXPECT_EQ(row.at("decode").at("density_selected"), other.at("decode").at("density_selected"));
    if (i < 3) continue;
    // Pages of the unsealed block are not gathered: recorded ones are none of them.
    EXPECT_GE(row.at("decode").at("h2d_bytes"), other.at("decode").at("h2d_bytes"));
  }
}

TEST_F(Replay, FullIsARowIfItIsNamed) {
  const Words words = sparse({"--lengths", "2K", "--policies", "full+quest", "--budgets", "128",
                              "--modes", "off", "--replay", lists()});
  const Json json = json_of(words);
  ASSERT_EQ(json.at("results").size(), 1u);
  EXPECT_TRUE(json.at("results")[0].at("decode").at("speed_of_full").is_null());
}

TEST_F(Replay, TheTableSaysSo) {
  const Outcome outcome =
      run_sluice(sparse({"--lengths", "2K", "--policies", "full+quest", "--budgets", "128",
                         "--modes", "off", "--replay", lists()}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"Replayed: in place of the pages that Quest chooses",
                            "6\nsteps of needle after 1040 tokens", "full+quest, 128, replayed"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
}

// Drafts read the lists, passes that verify do not: with drafts of one token, half of the rows.
TEST_F(Replay, DraftsReadTheRecordedLists) {
  const Words words = {"speculative",
                       model_dir(),
                       "--device",
                       "cpu",
                       "--lengths",
                       "2K",
                       "--decode-tokens",
                       "9",
                       "--repeats",
                       "1",
                       "--counts",
                       "1",
                       "--accept",
                       "0",
                       "--num-kv-slots",
                       "3",
                       "--block-size",
                       "64",
                       "--sparse-page-tokens",
                       "16",
                       "--replay",
                       lists(),
                       "--sparse-topk-tokens"};
  const Json json = json_of(joined(words, {"128"}));
  EXPECT_EQ(json.at("replay").at("steps"), 6);
  ASSERT_EQ(json.at("results").size(), 3u);
  EXPECT_EQ(json.at("results")[1].at("draft_tokens"), 9);
  const Outcome outcome = run_sluice(joined(words, {"128"}));
  EXPECT_NE(outcome.out.find("Replayed: in place of the pages that Quest chooses"),
            std::string::npos)
      << outcome.out;
  expect_usage_errors({{joined(words, {"256"}), "the recorded lists have 128 tokens"}});
}

// One sequence, so what the engine finds is what an LRU cache holds, page by page.
TEST_F(Replay, HotPagesFindWhatTheSimulatedCacheHolds) {
  for (const char* bytes : {"1M", "2M"}) {
    const Json json = json_of(
        overlap({"--budgets", "128", "--kv-offload", "chunked", "--block-size", "64",
                 "--kv-host-bytes", "8M", "--kv-device-bytes", bytes, "--lengths", "1500"}));
    const Json& results = json.at("results");
    ASSERT_EQ(results.size(), 7u);
    for (const Json& row : results) {
      const Json& hot = row.at("hot_pages");
      SCOPED_TRACE(row.dump());
      EXPECT_GT(hot.at("places"), 8);
      EXPECT_GT(hot.at("hits"), 0);
      EXPECT_GT(hot.at("misses"), 0);
      EXPECT_EQ(hot.at("hits"), hot.at("lru_hits"));
      EXPECT_EQ(hot.at("misses"), hot.at("lru_misses"));
    }
    EXPECT_LT(results[6].at("hot_pages").at("chosen_hit_share"), 1);
  }
  EXPECT_TRUE(recorded_->at("results")[0].at("hot_pages").is_null());
}

TEST_F(Replay, BadOptionsAreErrors) {
  directory_->write("short.bin", read_file(lists()).substr(0, 200));
  const auto replay = [&](const std::string& file, const Words& words) {
    return joined(sparse({"--policies", "full+quest", "--modes", "off", "--replay", file}), words);
  };
  expect_usage_errors({
      {overlap({"--record", lists()}), "--record: a file has the lists of one length"},
      {overlap({"--budgets", "2K", "--record", lists() + "x"}), "pages to choose 128 from"},
      {overlap({"--budgets", "128", "--record", "/no/such/lists"}), "--record"},
      {replay(lists(), {"--lengths", "2K", "--budgets", "256"}),
       "the recorded lists have 128 tokens chosen by score"},
      {replay(lists(), {"--lengths", "2K", "--budgets", "128", "--sparse-sink-tokens", "32"}),
       "32 of sinks"},
      {replay(lists(), {"--lengths", "1K", "--budgets", "128"}), "give a longer context"},
      {replay((directory_->path() / "short.bin").string(), {"--lengths", "2K"}),
       "short.bin is cut off or damaged"},
      {replay(model_dir() + "/config.json", {"--lengths", "2K"}),
       "config.json is no file of page lists"},
      {replay("/no/such/lists", {"--lengths", "2K"}), "--replay"},
      {sparse({"--policies", "full+streaming", "--replay", lists()}),
       "--replay: no policy decodes with quest"},
  });
}

}  // namespace
}  // namespace sluice::lab
