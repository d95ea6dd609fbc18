// KV offload from outside: wherever KV lives, the bundled model says the same, to the token.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/program_under_test.h"
#include "io/temp_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

std::string model_dir() { return (fs::path(SLUICE_SOURCE_DIR) / "models/needle").string(); }

// Small blocks and slots, so that a few hundred tokens take several loads per layer.
Words small_ring(const std::string& mode) {
  return {"--kv-offload",   mode, "--kv-host-bytes", "64M", "--kv-cache-bytes", "64M",
          "--block-size",   "64", "--num-kv-slots",  "3",   "--kv-slot-blocks", "2",
          "--max-num-seqs", "4"};
}

std::vector<Words> offloaded_ways() {
  std::vector<Words> ways;
  for (const char* chunk : {"64", "192", "1024"}) {
    Words words = small_ring("chunked");
    words.insert(words.end(), {"--prefill-chunk-tokens", chunk});
    ways.push_back(words);
  }
  ways.push_back(small_ring("layerwise"));
  return ways;
}

Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Text and token ids of every answer.
Json answers(const Words& words, const std::string& input) {
  const Outcome outcome = run_sluice(Invocation{.words = words, .input = input});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Json all = Json::array();
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    all.push_back({json.at("text"), json.at("token_ids"), json.at("prompt_token_ids").size()});
  }
  return all;
}

TEST(OffloadFromOutside, RunSaysTheSameWhereverKvLives) {
  const std::string document = slurp(model_dir() + "/haystack.txt").substr(0, 3000);
  for (const Words& sampling :
       {Words{"--temperature", "0"}, Words{"--temperature", "1", "--top-k", "0", "--seed", "11"}}) {
    const Words run = joined({"run", "-m", model_dir(), "--json", "-n", "70", "--ignore-eos"},
                             joined(sampling, {"-", "Another, short prompt"}));
    const Json resident = answers(joined(run, small_ring("off")), document);
    ASSERT_EQ(resident.size(), 2u);
    EXPECT_GT(resident[0][2], 400) << "the prompt has several blocks";
    for (const Words& way : offloaded_ways()) {
      EXPECT_EQ(answers(joined(run, way), document), resident) << testing::PrintToString(way);
    }
  }
}

TEST(OffloadFromOutside, NeedleFindsTheSameWhereverKvLives) {
  const TempDir directory;
  const auto found = [&](const Words& way) {
    const std::string out = (directory.path() / "grid").string();
    const Outcome outcome =
        run_sluice(joined({"needle", "-m", model_dir(), "--lengths", "512", "--depths", "0,50,100",
                           "--needles", "1", "--out", out},
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

}  // namespace
}  // namespace sluice::cli
