// bench serve as a program, in a small form. Only what no machine's speed changes is
// checked: counts, texts, memory held afterwards.
#include <filesystem>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"
#include "io/temp_dir.h"
#include "tokenizer/tiny_tokenizer.h"

namespace sluice::cli {
namespace {

const Words kSmall = {"bench", "serve",          model_dir(), "--device",
                      "cpu",   "--block-size",   "64",        "--kv-cache-bytes",
                      "64M",   "--num-requests", "6",         "--least-tokens",
                      "4",     "--most-tokens",  "24",        "--repeats",
                      "2"};

TEST(BenchServe, StreamsHaveTheTextsOfGenerate) {
  const Json json = json_of(kSmall);
  EXPECT_EQ(json.at("num_equal_texts"), 2 * 6);
  EXPECT_GT(json.at("client_cpu_share"), 0);
  for (const char* way : {"generate", "service", "server"}) {
    EXPECT_GT(json.at(way).at("tokens_per_second").at("min"), 0) << way;
    EXPECT_GT(json.at(way).at("engine_seconds_per_step").at("min"), 0) << way;
  }
  EXPECT_GT(json.at("share_of_generate").at("median"), 0);
  EXPECT_GT(json.at("first_token_seconds").at("p50"), 0);
}

// The model has 256 times as many tokens as its tokenizer, so no answer has a text.
TEST(BenchServe, AnswersWithoutATextHaveTimes) {
  const TempDir directory;
  Json config = Json::parse(slurp(std::filesystem::path(model_dir()) / "config.json"));
  config["vocab_size"] = 256 * 256;
  directory.write("config.json", config.dump());
  directory.write("tokenizer.json", testing::tiny_tokenizer().dump());
  const Json streams = json_of({"bench", "serve", directory.path().string(), "--device", "cpu",
                                "--repeats", "1", "--num-requests", "2", "--kv-cache-bytes", "64M",
                                "--least-tokens", "2", "--most-tokens", "3"});
  EXPECT_TRUE(streams.at("first_token_seconds").is_null()) << "an answer has a text: " << streams;
  EXPECT_GT(streams.at("server").at("tokens_per_second").at("min"), 0);
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
         bench = run_sluice({"bench", "serve", "--uds", socket, "--repeats", "1", "--num-requests",
                             "3", "--least-tokens", "4", "--most-tokens", "24", "--json"});
         return true;
       }});
  EXPECT_EQ(server.exit_code, 0) << server.err;
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const Json json = Json::parse(bench.out);
  EXPECT_EQ(json.at("subject"), socket);
  EXPECT_GT(json.at("server").at("tokens_per_second").at("min"), 0);
  EXPECT_FALSE(json.contains("generate")) << "its engine is elsewhere";
}

TEST(BenchServe, PrintsATable) {
  const Outcome outcome = run_sluice(joined(kSmall, {"--repeats", "1"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"serve streams, needle, random weights\n", "server over generate",
                            "6 texts are those of generate", "first token after"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
}

TEST(BenchServe, WhatHasNoEffectIsRefused) {
  expect_usage_errors({
      {{"bench", "serve"}, "no model given"},
      {{"bench", "serve", "d", "--least-tokens", "65", "--most-tokens", "64"}, "lower it"},
      {{"bench", "serve", "--url", "http://127.0.0.1:1", "--http-threads", "4"}, "has its own"},
      {{"bench", "serve", "d", "--uds", "s"}, "'d' is given as the model"},
      {{"bench", "serve", "--url", "http://127.0.0.1:1", "--uds", "s"}, "leave one of them out"},
      {{"bench", "serve", "--url", "127.0.0.1:1"}, "is not http://ADDRESS:PORT"},
  });
}

}  // namespace
}  // namespace sluice::cli
