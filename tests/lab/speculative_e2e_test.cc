// sluice-lab speculative as a program: what acceptances of 0 and 1 give is known exactly, and so is
// what a draft with the verifier's attention gives.
#include <gtest/gtest.h>

#include "cli/bench_under_test.h"

namespace sluice::lab {

using namespace cli;  // helpers of tests

namespace {

// One run of 24 tokens after 256.
Words one_run(const Words& words) {
  return joined({"speculative", model_dir(), "--device", "cpu", "--lengths", "256",
                 "--decode-tokens", "24", "--repeats", "1", "--block-size", "64"},
                words);
}

// The same with KV in host memory.
Words speculative(const Words& words) {
  return one_run(joined({"--num-kv-slots", "3", "--kv-slot-blocks", "2"}, words));
}

void expect_plain(const Json& row) {
  EXPECT_EQ(row.at("plain"), true);
  EXPECT_TRUE(row.at("num_speculative_tokens").is_null());
  EXPECT_TRUE(row.at("forced_acceptance").is_null());
  EXPECT_TRUE(row.at("model").is_null());
  EXPECT_EQ(row.at("speed_of_plain"), 1);
  EXPECT_EQ(row.at("tokens_per_step"), 1);
  EXPECT_EQ(row.at("steps"), 24);
  EXPECT_EQ(row.at("draft_tokens"), 0);
  EXPECT_GT(row.at("share_of_link"), 0);
}

// A row of drafts of `num_drafts` tokens, of which all or none are accepted.
void expect_forced(const Json& row, int64_t num_drafts, bool accepts, bool drafts_by_passes) {
  SCOPED_TRACE(row.dump());
  EXPECT_EQ(row.at("plain"), false);
  EXPECT_EQ(row.at("num_speculative_tokens"), num_drafts);
  EXPECT_EQ(row.at("forced_acceptance"), accepts ? 1 : 0);
  const int64_t a_step = accepts ? num_drafts + 1 : 1;
  EXPECT_EQ(row.at("steps"), (24 + a_step - 1) / a_step);
  EXPECT_EQ(row.at("tokens"), row.at("steps").get<int64_t>() * a_step);
  EXPECT_EQ(row.at("tokens_per_step"), a_step);
  EXPECT_EQ(row.at("draft_tokens"), row.at("steps").get<int64_t>() * num_drafts);
  EXPECT_EQ(row.at("accepted_tokens"), accepts ? row.at("draft_tokens").get<int64_t>() : 0);
  const Json& model = row.at("model");
  EXPECT_EQ(model.at("acceptance"), accepts ? 1 : 0);
  EXPECT_DOUBLE_EQ(model.at("tokens_per_step"), static_cast<double>(a_step));
  // One run, so the times of its passes add up to the time of its tokens.
  EXPECT_NEAR(model.at("measured_of_predicted"), 1, 1e-6);
  EXPECT_GT(row.at("verify_seconds"), 0);
  EXPECT_EQ(row.at("draft_seconds") > 0, drafts_by_passes);
}

TEST(BenchSpeculative, ForcedAcceptanceGivesItsTokens) {
  const Json json =
      json_of(speculative({"--counts", "2,5", "--accept", "0,100", "--sparse-page-tokens", "16",
                           "--sparse-topk-tokens", "64"}));
  EXPECT_EQ(json.at("method"), "sparse");
  EXPECT_EQ(json.at("policy"), "full+quest");
  EXPECT_EQ(json.at("kv_offload"), "chunked");
  EXPECT_TRUE(json.at("prompts").is_null());
  EXPECT_TRUE(json.at("replay").is_null());
  const Json& results = json.at("results");
  ASSERT_EQ(results.size(), 7u);
  expect_plain(results[0]);
  for (size_t i = 1; i < 5; ++i) expect_forced(results[i], i < 3 ? 2 : 5, i % 2 == 0, true);
  for (size_t i = 5; i < 7; ++i) {
    EXPECT_TRUE(results[i].at("num_speculative_tokens").is_null()) << "chosen by the engine";
    EXPECT_EQ(results[i].at("forced_acceptance"), i == 6 ? 1 : 0);
    EXPECT_EQ(results[i].at("accepted_tokens"),
              i == 6 ? results[i].at("draft_tokens").get<int64_t>() : 0);
  }
}

// Random ids have no n-grams to find, so the drafts are made up.
TEST(BenchSpeculative, NgramsHaveDraftsToForce) {
  const Json json = json_of(one_run({"--counts", "3", "--accept", "0,100", "--speculative-method",
                                     "ngram", "--kv-offload", "off"}));
  EXPECT_EQ(json.at("policy"), "full");
  ASSERT_EQ(json.at("results").size(), 5u);
  EXPECT_EQ(json.at("results")[0].at("share_of_link"), 0);
  expect_forced(json.at("results")[1], 3, false, false);
  expect_forced(json.at("results")[2], 3, true, false);
}

// A draft that reads everything is what the verifier gives, so all of it is accepted.
TEST(BenchSpeculative, RealAcceptanceIsThatOfTheModel) {
  const Json json = json_of(speculative({"--load-format", "auto", "--counts", "3", "--repeats", "2",
                                         "--sparse-topk-tokens", "4K", "--temperature", "0.8"}));
  EXPECT_GT(json.at("prompts").at("tokens"), 1000);
  const Json& results = json.at("results");
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[1].at("num_speculative_tokens"), 3);
  EXPECT_TRUE(results[1].at("forced_acceptance").is_null());
  EXPECT_EQ(results[1].at("tokens_per_step"), 4);
  EXPECT_EQ(results[1].at("accepted_tokens"), results[1].at("draft_tokens"));
  EXPECT_EQ(results[1].at("model").at("acceptance"), 1);
  EXPECT_TRUE(results[2].at("num_speculative_tokens").is_null()) << "chosen by the engine";
  EXPECT_EQ(results[2].at("accepted_tokens"), results[2].at("draft_tokens"));

  const Json few =
      json_of(speculative({"--load-format", "auto", "--counts", "3", "--sparse-page-tokens", "16",
                           "--sparse-topk-tokens", "16", "--sparse-sink-tokens", "0",
                           "--sparse-recent-tokens", "0", "--temperature", "0.8"}));
  const Json& row = few.at("results")[1];
  EXPECT_LT(row.at("accepted_tokens"), row.at("draft_tokens")) << "a page is too little";
}

TEST(BenchSpeculative, TheTableHasTheModelBesideTheMeasurement) {
  const Outcome outcome =
      run_sluice(speculative({"--counts", "2", "--accept", "50", "--sparse-topk-tokens", "64"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words :
       {"speculative, needle, random weights, method sparse, full+quest, topk 64, KV chunked",
        "Acceptance is forced", "T_verify", "of model", "50 %", "none"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
}

TEST(BenchSpeculative, BadOptionsAreErrors) {
  expect_usage_errors({
      {speculative({"--load-format", "auto", "--accept", "50"}), "--accept is given, but"},
      {speculative({"--file", model_dir() + "/haystack.txt"}), "--file is given, but"},
      {speculative({"--temperature", "1"}), "--temperature is given, but"},
      {speculative({"--num-speculative-tokens", "4"}), "--num-speculative-tokens is given, but"},
      {speculative({"--speculative-config", "{}"}), "--speculative-config is given, but"},
      {speculative({"--speculative-method", "none"}), "'none' drafts nothing"},
      {speculative({"--counts", "65"}), "--counts: '65'"},
      {speculative({"--accept", "101"}), "--accept: '101'"},
      {speculative({"--load-format", "auto", "--file", "/no/such"}), "--file"},
      {speculative({"--load-format", "auto", "--replay", "/no/such"}), "--replay is given, but"},
      {speculative({"--speculative-method", "ngram", "--replay", "/no/such"}),
       "--replay: no draft chooses pages with quest"},
      {speculative({"--replay", "/no/such"}), "--replay"},
  });
}

}  // namespace
}  // namespace sluice::lab
