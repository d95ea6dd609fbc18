// KV offload from outside: the bundled model gives the same tokens wherever KV is; moved bytes and
// selections are reported.
#include <gtest/gtest.h>

#include "cli/program_under_test.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/sanitizer.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

std::string model_dir() { return (testing::source_dir() / "models/needle").string(); }

// Small blocks and slots, so that a few hundred tokens need several loads per layer.
Words small_ring(const std::string& mode) {
  Words words = {"--kv-offload", mode, "--block-size", "64", "--max-num-seqs", "4"};
  const Words sizes = mode == "off" ? Words{"--kv-cache-bytes", "64M"}
                                    : Words{"--kv-host-bytes",  "64M", "--num-kv-slots", "3",
                                            "--kv-slot-blocks", "2"};
  words.insert(words.end(), sizes.begin(), sizes.end());
  return words;
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
  std::vector<Words> samplings = {{"--temperature", "1", "--top-k", "0", "--seed", "11"}};
  // Greedy runs make the same waits as sampled ones, so under a sanitizer one kind is enough.
  if (!kSanitized) samplings.push_back({"--temperature", "0"});
  for (const Words& sampling : samplings) {
    const Words run = joined({"run", "-m", model_dir(), "--json", "-n", "70", "--ignore-eos"},
                             joined(sampling, {"-", "Another, short prompt"}));
    const Json resident = answers(joined(run, small_ring("off")), document);
    ASSERT_EQ(resident.size(), 2u);
    EXPECT_GT(resident[0][2], 400) << "the prompt has several blocks";
    for (const Words& way : offloaded_ways()) {
      EXPECT_EQ(answers(joined(run, way), document), resident) << ::testing::PrintToString(way);
    }
  }
}

TEST(OffloadFromOutside, WhatWasMovedIsShownAndRecorded) {
  const TempDir directory;
  const std::string document = slurp(model_dir() + "/haystack.txt").substr(0, 3000);
  const std::string timeline = (directory.path() / "timeline.json").string();
  const Words run = joined({"run", "-m", model_dir(), "-n", "4", "--ignore-eos"},
                           joined(small_ring("chunked"), {"--prefill-chunk-tokens", "64"}));

  const Outcome json_run = run_sluice(
      Invocation{.words = joined(run, {"--json", "--timeline", timeline}), .input = document});
  ASSERT_EQ(json_run.exit_code, 0) << json_run.err;
  const Json seen = Json::parse(json_run.out).at("observations");
  EXPECT_EQ(seen.at("kv_offload"), "chunked");
  for (const Json& layer : seen.at("prefill").at("layers")) {
    EXPECT_GT(layer.at("h2d_bytes"), layer.at("d2h_bytes"));
    EXPECT_EQ(layer.at("density_transferred"), 1.0);
  }
  EXPECT_EQ(seen.at("decode").at("steps"), 3);
  EXPECT_GT(Json::parse(slurp(timeline)).at("traceEvents").size(), 100u);
  EXPECT_NE(json_run.err.find(timeline), std::string::npos);

  const Outcome verbose = run_sluice(Invocation{.words = joined(run, {"-v"}), .input = document});
  EXPECT_EQ(verbose.exit_code, 0);
  for (const char* words : {"KV offload: chunked", "to the device", "prefill: ", "decode: "}) {
    EXPECT_NE(verbose.err.find(words), std::string::npos) << verbose.err;
  }
}

// A budget far below the prompt: the same text wherever KV is, and no more bytes moved than
// selected.
TEST(OffloadFromOutside, SparsePoliciesAnswerAlikeAndSayWhatTheySelected) {
  const std::string document = slurp(model_dir() + "/haystack.txt").substr(0, 3000);
  const Words run = {"run",
                     "-m",
                     model_dir(),
                     "-n",
                     "4",
                     "--ignore-eos",
                     "--temperature",
                     "0",
                     "--sparse-policy",
                     "full+quest",
                     "--sparse-topk-tokens",
                     "64",
                     "--sparse-page-tokens",
                     "16"};
  Json texts = Json::array();
  for (const Words& way : {small_ring("off"), small_ring("chunked"), small_ring("layerwise")}) {
    const Outcome outcome =
        run_sluice(Invocation{.words = joined(joined(run, way), {"--json"}), .input = document});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    texts.push_back(json.at("text"));
    EXPECT_EQ(texts.back(), texts.front()) << way[1];
    const Json& decode = json.at("observations").at("decode");
    EXPECT_EQ(json.at("observations").at("sparse_policy"), "full+quest");
    EXPECT_EQ(decode.at("sequence_steps"), 3);
    EXPECT_EQ(decode.at("fallbacks"), 0);
    EXPECT_LT(decode.at("density_selected"), 0.5);
    for (const Json& layer : decode.at("layers")) {
      EXPECT_GT(layer.at("h2d_bytes"), 0);
      EXPECT_LT(layer.at("density_transferred"), 0.5);
    }
  }
  const Outcome verbose = run_sluice(
      Invocation{.words = joined(joined(run, small_ring("off")), {"-v"}), .input = document});
  EXPECT_NE(verbose.err.find("decode attention read "), std::string::npos) << verbose.err;
  const Outcome plan = run_sluice({"inspect", model_dir(), "--sparse-policy", "full+quest"});
  EXPECT_NE(plan.out.find("policy summaries"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("selections"), std::string::npos) << plan.out;
}

// Masks of tiles: the same text wherever KV is, and the tiles that were read.
TEST(OffloadFromOutside, PoliciesOfTilesAnswerAlikeAndSayWhatTheyRead) {
  const std::string document = slurp(model_dir() + "/haystack.txt").substr(0, 6000);
  const Words run = {"run",
                     "-m",
                     model_dir(),
                     "-n",
                     "2",
                     "--ignore-eos",
                     "--temperature",
                     "0",
                     "--block-size",
                     "128",
                     "--max-num-seqs",
                     "1",
                     "--sparse-policy",
                     "xattention+quest",
                     "--sparse-threshold-tokens",
                     "0",
                     "--sparse-coverage",
                     "0.99",
                     "--sparse-coverage-of",
                     "rest",
                     "--sparse-audit",
                     "--sparse-max-budget-tokens",
                     "384"};
  Json first;
  for (const char* way : {"off", "layerwise"}) {
    const Outcome outcome = run_sluice(
        Invocation{.words = joined(run, {"--kv-offload", way, "--json", "-v"}), .input = document});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    const Json& prefill = json.at("observations").at("prefill");
    EXPECT_LT(prefill.at("tiles_set"), prefill.at("tiles_visible"));
    EXPECT_GT(prefill.at("tiles_set"), 0);
    EXPECT_GT(prefill.at("tiles_cut"), 0);
    EXPECT_LT(prefill.at("density_selected"), 1.0);
    if (first.is_null()) first = json;
    EXPECT_EQ(json.at("text"), first.at("text")) << way;
    EXPECT_EQ(prefill.at("tiles_set"), first.at("observations").at("prefill").at("tiles_set"));
    EXPECT_NE(outcome.err.find("prefill attention read "), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("sparse_max_budget_tokens cut off "), std::string::npos);
    EXPECT_NE(outcome.err.find("sparse prefill captured"), std::string::npos) << outcome.err;
    const Json& mass = json.at("observations").at("captured_mass");
    ASSERT_GT(mass.size(), 0u);
    EXPECT_EQ(mass, first.at("observations").at("captured_mass")) << way;
    EXPECT_GT(mass.at(0).at("rows"), 0);
    EXPECT_GT(mass.at(0).at("captured"), 0.0);
    EXPECT_LT(mass.at(0).at("captured"), 1.0);
    const Json& own = json.at("captured_mass");  // of the only request
    EXPECT_EQ(own.at("layers"), mass);
    EXPECT_EQ(own.at("rows"), mass.at(0).at("rows"));
    EXPECT_NE(outcome.err.find("prefill captured "), std::string::npos) << outcome.err;
  }
  const Outcome plan = run_sluice({"inspect", model_dir(), "--sparse-policy", "xattention+quest"});
  EXPECT_NE(plan.out.find("selections"), std::string::npos) << plan.out;
}

// No offload option is given, and the KV cache has room for a part of the prompt only.
TEST(OffloadFromOutside, APromptThatDoesNotFitJustRunsAndOneLineSaysSo) {
  const std::string document = slurp(model_dir() + "/haystack.txt").substr(0, 3000);
  const Words run = {"run", "-m", model_dir(), "--json", "-n", "8", "--temperature", "0"};
  const Words small = joined(run, {"--kv-cache-bytes", "1M"});
  const auto outcome_of = [&](const Words& words) {
    return run_sluice(Invocation{.words = words, .input = document});
  };
  EXPECT_EQ(outcome_of(joined(small, {"--kv-offload", "off"})).exit_code, 4);
  const Outcome resident = outcome_of(joined(run, {"--kv-cache-bytes", "256M"}));
  const Outcome flowing =
      outcome_of(joined(small, {"--kv-host-bytes", "128M", "--max-num-seqs", "4"}));
  ASSERT_EQ(flowing.exit_code, 0) << flowing.err;
  EXPECT_EQ(Json::parse(flowing.out).at("token_ids"), Json::parse(resident.out).at("token_ids"));
  EXPECT_EQ(Json::parse(flowing.out).at("observations").at("kv_offload"), "layerwise");
  const std::string line = "kv_offload is layerwise: the device has room for the KV of ";
  const size_t said = flowing.err.find(line);
  EXPECT_NE(said, std::string::npos) << flowing.err;
  EXPECT_EQ(flowing.err.find("kv_offload is ", said + 1), std::string::npos) << "once";
  EXPECT_EQ(resident.err.find("kv_offload"), std::string::npos) << resident.err;
}

TEST(OffloadFromOutside, ATimelineThatCannotBeWrittenEndsTheRunBeforeItBegins) {
  const Outcome outcome = run_sluice(
      {"run", "-m", model_dir(), "--timeline", "/no/such/directory/timeline.json", "hi"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("/no/such/directory"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sluice::cli
