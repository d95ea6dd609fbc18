// bench serve as a program, every scenario in a small form. Only what no machine's speed changes is
// checked: counts, texts, memory held afterwards.
#include <filesystem>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"
#include "io/temp_dir.h"
#include "tokenizer/tiny_tokenizer.h"

namespace sluice::cli {
namespace {

Words scenario(const std::string& name, const Words& more) {
  return joined(
      {"bench", "serve", model_dir(), "--scenario", name, "--device", "cpu", "--block-size", "64"},
      more);
}

const Words kResident = {"--kv-cache-bytes", "64M"};
const Words kOnHost = {"--kv-offload",   "chunked", "--kv-host-bytes",  "64M",
                       "--num-kv-slots", "3",       "--kv-slot-blocks", "2"};

TEST(BenchServe, StreamsHaveTheTextsOfGenerate) {
  const Json json =
      json_of(scenario("streams", joined(kResident, {"--num-requests", "6", "--least-tokens", "4",
                                                     "--most-tokens", "24", "--repeats", "2"})));
  EXPECT_EQ(json.at("scenario"), "streams");
  EXPECT_EQ(json.at("num_equal_texts"), 2 * 6);
  EXPECT_GT(json.at("client_cpu_share"), 0);
  for (const char* way : {"generate", "service", "server"}) {
    EXPECT_GT(json.at(way).at("tokens_per_second").at("min"), 0) << way;
    EXPECT_GT(json.at(way).at("engine_seconds_per_step").at("min"), 0) << way;
  }
  EXPECT_GT(json.at("share_of_generate").at("median"), 0);
  EXPECT_GT(json.at("first_token_seconds").at("p50"), 0);
}

TEST(BenchServe, AnAnswerBesideALongPromptIsTheSame) {
  const Json json = json_of(
      scenario("beside", joined(kResident, {"--prompt-tokens", "2K", "--output-tokens", "600",
                                            "--prefill-chunk-tokens", "128", "--repeats", "2"})));
  EXPECT_EQ(json.at("num_equal_texts"), 2);
  EXPECT_EQ(json.at("max_stall_ms"), 2000) << "as sluice serve";
  EXPECT_GT(json.at("tokens_beside").at("min"), 0);
  for (const char* name : {"answer_tokens_per_second", "long_prompt_seconds",
                           "short_prompt_seconds", "answer_gap_seconds"}) {
    EXPECT_GT(json.at(name).at("min"), 0) << name;
  }
}

// The second document ends within a block, which every question computes for itself.
TEST(BenchServe, ADocumentIsComputedOnce) {
  for (const auto& [tokens, found] : {std::pair{1024, 1024}, std::pair{1000, 960}}) {
    const Json json =
        json_of(scenario("shared", joined(kResident, {"--prompt-tokens", std::to_string(tokens),
                                                      "--num-requests", "4", "--repeats", "2"})));
    const int64_t fewest = 4 * (tokens + 16) - 3 * found;
    EXPECT_EQ(json.at("fewest_tokens"), fewest);
    EXPECT_EQ(json.at("computed_tokens").at("min"), fewest);
    EXPECT_EQ(json.at("computed_tokens").at("max"), fewest);
  }
}

// The model has 256 times as many tokens as its tokenizer, so no answer has a text.
TEST(BenchServe, AnswersWithoutATextHaveTimes) {
  const TempDir directory;
  Json config = Json::parse(slurp(std::filesystem::path(model_dir()) / "config.json"));
  config["vocab_size"] = 256 * 256;
  directory.write("config.json", config.dump());
  directory.write("tokenizer.json", testing::tiny_tokenizer().dump());
  const auto measure = [&](const std::string& name, const Words& more) {
    return json_of(joined({"bench", "serve", directory.path().string(), "--scenario", name,
                           "--device", "cpu", "--repeats", "1", "--num-requests", "2"},
                          joined(kResident, more)));
  };
  const Json shared = measure("shared", {"--prompt-tokens", "256"});
  EXPECT_GT(shared.at("all_seconds").at("min"), 0);
  EXPECT_GT(shared.at("one_seconds").at("min"), 0);
  const Json streams = measure("streams", {"--least-tokens", "2", "--most-tokens", "3"});
  EXPECT_TRUE(streams.at("first_token_seconds").is_null()) << "an answer has a text: " << streams;
  EXPECT_GT(streams.at("server").at("tokens_per_second").at("min"), 0);
}

TEST(BenchServe, ACancelledPromptIsFoundAgainAndHoldsNothing) {
  for (const Words& memory : {kResident, kOnHost}) {
    const Json json = json_of(
        scenario("cancel", joined(memory, {"--prompt-tokens", "1K", "--prefill-chunk-tokens", "64",
                                           "--max-num-batched-tokens", "64", "--repeats", "1"})));
    EXPECT_TRUE(json.at("is_idle").get<bool>());
    ASSERT_EQ(json.at("results").size(), 5u);
    for (const Json& row : json.at("results")) {
      const std::string left = row.at("left");
      const double found = row.at("found_tokens").at("min");
      EXPECT_EQ(static_cast<int64_t>(found) % 64, 0) << left;
      EXPECT_LT(found, 1024) << left;
      if (left.starts_with("half")) {
        EXPECT_GE(row.at("processed_tokens").at("min"), 512) << left;
        EXPECT_GE(found, 512 - 64) << left << ": at most the span that was cancelled is lost";
      }
      if (left.starts_with("in the answer")) {
        EXPECT_EQ(found, 1024 - 64) << left;
      }
    }
  }
}

TEST(BenchServe, ALongAnswerIsThatOfGenerate) {
  const Json json =
      json_of(scenario("answer", joined(kResident, {"--output-tokens", "200", "--repeats", "2"})));
  EXPECT_EQ(json.at("num_equal_texts"), 2);
  EXPECT_EQ(json.at("server_seconds_per_token").size(), 8u);
  EXPECT_EQ(json.at("generate_seconds_per_token").size(), 8u);
  EXPECT_LE(json.at("num_events"), 200);
  EXPECT_GT(json.at("server_drift"), 0);
}

TEST(BenchServe, MixedRequestsLeaveNothingBehind) {
  const Json json = json_of(scenario(
      "mixed",
      joined(kOnHost, {"--num-requests", "150", "--concurrency", "8", "--most-tokens", "32"})));
  EXPECT_EQ(json.at("num_answered"), 120);
  EXPECT_EQ(json.at("num_left"), 30);
  EXPECT_TRUE(json.at("is_idle").get<bool>());
  EXPECT_EQ(json.at("used_kv_bytes"), 0);
  EXPECT_GT(json.at("num_asked_again"), 0);
  EXPECT_EQ(json.at("num_equal_texts"), json.at("num_asked_again"));
  EXPECT_GT(json.at("found_tokens"), 0) << "every third prompt begins alike";
  EXPECT_EQ(json.at("resident_bytes").size(), 4u);
}

// The same with drafts by passes that read hot pages, and by n-grams.
TEST(BenchServe, MixedRequestsWithDraftsAndHotPagesLeaveNothingBehind) {
  const Words decode = {"--sparse-policy",           "full+quest",
                        "--sparse-topk-tokens",      "64",
                        "--sparse-page-tokens",      "16",
                        "--sparse-threshold-tokens", "0",
                        "--speculative-method",      "ngram+sparse",
                        "--kv-device-bytes",         "4M",
                        "--num-speculative-tokens",  "4"};
  const Json json = json_of(scenario(
      "mixed", joined(joined(kOnHost, decode),
                      {"--num-requests", "100", "--concurrency", "8", "--most-tokens", "32"})));
  EXPECT_EQ(json.at("num_answered"), 80);
  EXPECT_EQ(json.at("num_left"), 20);
  EXPECT_TRUE(json.at("is_idle").get<bool>());
  EXPECT_EQ(json.at("used_kv_bytes"), 0);
  EXPECT_EQ(json.at("num_equal_texts"), json.at("num_asked_again"));
}

// The bench runs while the server does, and the server's interrupt ends both.
TEST(BenchServe, MeasuresARunningServer) {
  const TempDir directory;
  const std::string socket = (directory.path() / "s").string();
  Outcome bench;
  bool is_done = false;
  const Outcome server = run_sluice(
      {.words = {"serve", "-m", model_dir(), "--device", "cpu", "--uds", socket, "--block-size",
                 "64", "--kv-cache-bytes", "64M", "--kv-offload", "off"},
       .interrupt_when = [&](const Outcome& so_far) {
         if (is_done || so_far.err.find("\nserving ") == std::string::npos) return is_done;
         is_done = true;
         bench = run_sluice({"bench", "serve", "--uds", socket, "--scenario", "shared", "--repeats",
                             "1", "--prompt-tokens", "1K", "--num-requests", "3", "--json"});
         return true;
       }});
  EXPECT_EQ(server.exit_code, 0) << server.err;
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_EQ(Json::parse(bench.out).at("computed_tokens").at("max"), 3 * 1040 - 2 * 1024);
}

TEST(BenchServe, PrintsTables) {
  const Outcome outcome = run_sluice(
      scenario("cancel", joined(kResident, {"--prompt-tokens", "2K", "--prefill-chunk-tokens", "64",
                                            "--max-num-batched-tokens", "64", "--repeats", "1"})));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"serve cancel, needle, random weights\n", "memory at its baseline: yes",
                            "half of the prompt, RST", "memory free after"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
}

TEST(BenchServe, WhatHasNoEffectIsRefused) {
  expect_usage_errors({
      {{"bench", "serve"}, "no model given"},
      {{"bench", "serve", "d", "--scenario", "storm"}, "'storm' is not one of streams, beside"},
      {{"bench", "serve", "d", "--prompt-tokens", "4K"}, "the scenario streams does not use it"},
      {{"bench", "serve", "d", "--scenario", "mixed", "--repeats", "2"}, "does not use it"},
      {{"bench", "serve", "d", "--scenario", "mixed", "--least-tokens", "65"}, "lower it"},
      {{"bench", "serve", "--url", "http://127.0.0.1:1", "--http-threads", "4"}, "has its own"},
      {{"bench", "serve", "d", "--uds", "s"}, "'d' is given as the model"},
      {{"bench", "serve", "--url", "http://127.0.0.1:1", "--uds", "s"}, "leave one of them out"},
      {{"bench", "serve", "--url", "127.0.0.1:1"}, "is not http://ADDRESS:PORT"},
  });
}

}  // namespace
}  // namespace sluice::cli
