// `sluice-eval needle` from outside: its files, its scores, Ctrl-C, and KV in host memory.
#include <chrono>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"
#include "cli/tiny_program.h"
#include "io/json_type.h"

namespace sluice::eval {

using namespace cli;  // the program under test

namespace {

namespace fs = std::filesystem;

std::string bundled_model() { return (testing::source_dir() / "models/needle").string(); }

class Needle : public Program {};

TEST_F(Needle, WritesItsFiles) {
  const Outcome outcome = run_sluice(on_tiny("needle", {"--lengths", "256,512", "--depths", "0,100",
                                                        "--needles", "1", "--out", path("grid")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(slurp(path("grid/needle.json")));
  EXPECT_EQ(json.at("items").size(), 4u);
  EXPECT_EQ(json.at("complete"), true);
  for (const Json& item : json.at("items")) {
    EXPECT_EQ(item.at("prompt_tokens"), item.at("length"));
  }
  EXPECT_NE(slurp(path("grid/needle.svg")).find("</svg>"), std::string::npos);
  EXPECT_NE(slurp(path("grid/needle.html")).find("</html>"), std::string::npos);
  EXPECT_NE(outcome.out.find("needle.html"), std::string::npos);
}

// Two values of a random model's answer are rarely right, but a row, a score and all files are
// there.
TEST_F(Needle, ScoresTheTasksOfRuler) {
  for (const char* kind : {"vt", "fwe"}) {
    const Outcome outcome =
        run_sluice(on_tiny("needle", {"--kind", kind, "--lengths", "768", "--needles", "1", "-n",
                                      "4", "--out", path(kind)}));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("score "), std::string::npos) << outcome.out;
    const std::string page = slurp(path(std::string(kind) + "/needle.html"));
    EXPECT_NE(page.find("RULER " + std::string(kind)), std::string::npos);
    EXPECT_EQ(page.find("eedle"), std::string::npos) << "RULER asks for more";
    const Json json = Json::parse(slurp(path(std::string(kind) + "/needle.json")));
    EXPECT_EQ(json.at("items").size(), std::string(kind) == "vt" ? 5u : 1u);
    for (const Json& item : json.at("items")) {
      EXPECT_EQ(item.at("prompt_tokens"), item.at("length"));
      EXPECT_TRUE(item.at("score") >= 0 && item.at("score") <= 1);
    }
  }
}

TEST_F(Needle, RefusesADirectoryThatCannotBeMade) {
  directory_->write("plain-file", "");
  const Outcome outcome = run_sluice(on_tiny("needle", {"--out", path("plain-file/sub")}));
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find("plain-file/sub"), std::string::npos) << outcome.err;
}

TEST_F(Needle, ControlCKeepsWhatWasAsked) {
  Invocation invocation{.words =
                            on_tiny("needle", {"-v", "--lengths", "256", "--depths", "0,50,100",
                                               "--needles", "5000", "--out", path("cut")})};
  invocation.interrupt_when = [](const Outcome& so_far) {
    return so_far.err.find("  256   0 %") != std::string::npos;
  };
  const Outcome outcome = run_sluice(invocation);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  const Json json = Json::parse(slurp(path("cut/needle.json")));
  EXPECT_EQ(json.at("complete"), false);
  EXPECT_GT(json.at("items").size(), 0u);
}

TEST_F(Needle, ALengthAtTheModelsLimitLeavesRoomForTheAnswer) {
  const Outcome outcome =
      run_sluice({"needle", "-m", bundled_model(), "--lengths", "512,1K", "--max-model-len", "1K",
                  "--depths", "50", "--needles", "1", "--save-prompts", "-o", path("limit")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("1K: prompts have "), std::string::npos) << outcome.err;
  const Json json = Json::parse(slurp(path("limit/needle.json")));
  ASSERT_EQ(json.at("items").size(), 2u);
  const int64_t length = json.at("items")[1].at("prompt_tokens");
  EXPECT_LT(length, 1024 - 8);
  EXPECT_GT(length, 1024 - 100);
  EXPECT_EQ(json.at("items")[1].at("finish_reason"), "stop") << "the answer had room";
  const Outcome beyond = run_sluice({"needle", "-m", bundled_model(), "--lengths", "512,2K",
                                     "--max-model-len", "1K", "-o", path("limit")});
  EXPECT_EQ(beyond.exit_code, 4) << beyond.err;

  // The prompts in a form that other engines can run.
  std::istringstream lines(slurp(path("limit/prompts.jsonl")));
  size_t i = 0;
  for (std::string line; std::getline(lines, line); ++i) {
    const Json prompt = Json::parse(line), &item = json.at("items").at(i);
    EXPECT_EQ(prompt.at("seed"), item.at("seed"));
    EXPECT_EQ(prompt.at("prompt_token_ids").size(), item.at("prompt_tokens"));
    EXPECT_NE(prompt.at("message").get<std::string>().find(prompt.at("expected")[0]),
              std::string::npos);
  }
  EXPECT_EQ(i, 2u);
}

TEST_F(Needle, HearsControlCWhileItReadsABinaryHaystack) {
  std::string bytes = "One. Two ";
  uint64_t state = 1;
  for (int i = 0; i < 3000000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    bytes += static_cast<char>(state >> 56);
  }
  std::ofstream(path("binary")) << bytes;
  Invocation invocation{.words = {"needle", "-m", bundled_model(), "--haystack", path("binary"),
                                  "--lengths", "1K", "--kv-offload", "off", "--kv-cache-bytes",
                                  "64M", "-o", path("binary-out")}};
  invocation.interrupt_after = std::chrono::milliseconds(500);
  const Outcome outcome = run_sluice(invocation);
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  // It must be cancelled at once; the bound allows for a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - outcome.interrupted_at, std::chrono::seconds(60));
}

TEST_F(Needle, FindsTheSameWhereverKvLives) {
  // Small blocks and slots, so that a few hundred tokens need several loads per layer.
  const auto small_ring = [](const std::string& mode) {
    Words words = {"--kv-offload", mode, "--block-size", "64", "--max-num-seqs", "4"};
    const Words sizes = mode == "off" ? Words{"--kv-cache-bytes", "64M"}
                                      : Words{"--kv-host-bytes",  "64M", "--num-kv-slots", "3",
                                              "--kv-slot-blocks", "2"};
    words.insert(words.end(), sizes.begin(), sizes.end());
    return words;
  };
  const auto found = [&](const Words& way) {
    const std::string out = path("offload");
    const Outcome outcome =
        run_sluice(joined({"needle", "-m", bundled_model(), "--lengths", "512", "--depths",
                           "0,50,100", "--needles", "1", "--out", out},
                          way));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(slurp(out + "/needle.svg").find(way[1] == "off" ? "KV on the device" : way[1]),
              std::string::npos);
    const Json json = Json::parse(slurp(out + "/needle.json"));
    EXPECT_EQ(json.at("settings").at("KV offload"), way[1]);
    Json items = Json::array();
    for (const Json& item : json.at("items")) items.push_back({item.at("key"), item.at("got")});
    EXPECT_EQ(items.size(), 3u);
    return items;
  };
  const Json resident = found(small_ring("off"));
  for (const char* mode : {"chunked", "layerwise"}) EXPECT_EQ(found(small_ring(mode)), resident);
}

// KV in FP8 is what bf16's is, rounded: logits differ, what is found does not.
TEST_F(Needle, FindsAllWithKvOfEightBits) {
  for (const char* type : {"fp8_e4m3", "int8"}) {
    SCOPED_TRACE(type);
    const Outcome outcome =
        run_sluice({"needle", "-m", bundled_model(), "--lengths", "512,1K", "--depths", "0,50,100",
                    "--needles", "1", "--kv-cache-dtype", type, "--out", path("eight")});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json json = Json::parse(slurp(path("eight/needle.json")));
    ASSERT_EQ(json.at("items").size(), 6u);
    for (const Json& item : json.at("items")) EXPECT_EQ(item.at("score"), 1) << item;
  }
}

}  // namespace
}  // namespace sluice::eval
