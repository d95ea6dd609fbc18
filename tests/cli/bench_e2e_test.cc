// The bench subcommands as programs: byte counts must match their formulas, rates must be
// plausible, and every error ends before anything is measured.
#include <algorithm>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"

namespace sluice::cli {
namespace {

TEST(BenchFromOutside, DecodeAndPrefillSayWhatWasMeasured) {
  const Words small = {"--repeats", "1", "--prompt-lengths", "16", "--kv-cache-bytes", "64M"};
  const Outcome decode = run_sluice(joined({"bench", "decode", model_dir(), "-n", "4"}, small));
  ASSERT_EQ(decode.exit_code, 0) << decode.err;
  for (const char* words : {"needle, random weights, batch 1, 1 repeat: ", "tg4 @ d16"}) {
    EXPECT_NE(decode.out.find(words), std::string::npos) << words << "\n" << decode.out;
  }
  const Outcome prefill =
      run_sluice(joined({"bench", "prefill", model_dir(), "--load-format", "auto"}, small));
  ASSERT_EQ(prefill.exit_code, 0) << prefill.err;
  EXPECT_NE(prefill.out.find("prefill, needle, batch 1, 1 repeat: "), std::string::npos)
      << prefill.out;
  EXPECT_NE(prefill.out.find("pp16"), std::string::npos) << prefill.out;
}

// bench decode: 32 tokens in 8 steps of 4, all drafts accepted. Weights are read once for a token
// in both runs, KV of the 256 + 33 / 2 tokens once for a step.
TEST(BenchFromOutside, DecodeCountsStepsOfDrafts) {
  const auto bytes_of_a_token = [](const Words& words) {
    const Json json = json_of(joined({"bench", "decode", model_dir(), "--device", "cpu",
                                      "--prompt-lengths", "256", "-n", "33", "--repeats", "1"},
                                     words));
    const Json& row = json.at("results")[0];
    return row.at("work_per_second").at("median").get<double>() /
           row.at("tokens_per_second").at("median").get<double>();
  };
  const double plain = bytes_of_a_token({});
  const double speculative =
      bytes_of_a_token({"--speculative-method", "sparse", "--num-speculative-tokens", "3",
                        "--sparse-policy", "full+quest", "--sparse-topk-tokens", "4K"});
  EXPECT_NEAR(plain - speculative, 0.75 * (256 + 33 / 2.0) * 3072, 1);
}

// One token that comes again finds its experts, in 4 of 8 places; random ones find some.
TEST(BenchFromOutside, DecodeSaysHowManyExpertsWereFound) {
  const auto share_found = [](const char* reuse) {
    const auto model = testing::source_dir() / "tests/golden/models/qwen3moe-experts8-pair";
    const Json json = json_of({"bench", "decode", model, "--device", "cpu", "--prompt-lengths",
                               "64", "-n", "40", "--repeats", "2", "--weights-offload", "experts",
                               "--experts-device-bytes", "120K", "--expert-reuse", reuse});
    return json.at("results")[0].at("experts_found").get<double>();
  };
  const double random = share_found("0");
  const double same = share_found("1");
  EXPECT_LT(random, 0.8);
  EXPECT_GT(same, random);
}

// Bytes must match the formulas of docs/offload.md, shares the rates in the same row.
TEST(BenchFromOutside, OffloadCountsWhatMovesAndComparesWithResident) {
  const Json json =
      json_of(joined(small_kv({"bench", "offload"}, "256,512"), {"--chunks", "128,1K"}));
  expect_link(json);
  const auto speed = [](const Json& row, const char* phase) {
    return row.at(phase).at("tokens_per_second").at("median").get<double>();
  };
  ASSERT_EQ(json.at("results").size(), 2u * 5);
  for (size_t i = 0; i < 10; ++i) {
    const Json& row = json.at("results")[i];
    const size_t first = i / 5 * 5;  // of this length; the first two rows do not offload
    const int64_t context = i < 5 ? 256 : 512;
    EXPECT_EQ(row.at("context_tokens"), context);
    const bool flows = row.at("kv_offload") != "off";
    EXPECT_EQ(flows, i % 5 >= 2);
    const int64_t num_chunks = row.at("prefill_chunk_tokens") == 128 ? context / 128 : 1;
    EXPECT_EQ(row.at("prefill").at("h2d_bytes"),
              flows ? num_chunks * (num_chunks - 1) / 2 * 128 * kKvBytesPerToken : 0);
    EXPECT_EQ(row.at("prefill").at("d2h_bytes"), flows ? context * kKvBytesPerToken : 0);
    EXPECT_EQ(row.at("decode").at("h2d_bytes"), flows ? 3 * context * kKvBytesPerToken : 0);
    EXPECT_EQ(row.at("pinned_peak_bytes") > context * kKvBytesPerToken, flows);
    EXPECT_GT(row.at("device_peak_bytes"), 0);
    for (const char* phase : {"prefill", "decode"}) {
      const Json& of_phase = row.at(phase);
      expect_spread(of_phase.at("tokens_per_second"));
      expect_share(of_phase.at("share_of_resident"), 1000);
      EXPECT_DOUBLE_EQ(of_phase.at("share_of_resident"),
                       speed(row, phase) / std::max(speed(json.at("results")[first], phase),
                                                    speed(json.at("results")[first + 1], phase)));
      if (flows) {
        expect_share(of_phase.at("share_of_link"), 10);
      } else {
        EXPECT_EQ(of_phase.at("share_of_link"), 0);
      }
    }
  }
}

TEST(BenchFromOutside, WhatDoesNotFitIsSaidAndTheRestMeasured) {
  const Words words = joined(small_kv({"bench", "offload"}, "512"), {"--kv-cache-bytes", "1M"});
  const Json json = json_of(joined(words, {"--modes", "off,chunked"}));
  const Json& off = json.at("results")[0];
  EXPECT_NE(off.at("does_not_fit").get<std::string>().find("--kv-cache-bytes "), std::string::npos);
  EXPECT_FALSE(off.contains("decode"));
  EXPECT_TRUE(json.at("results")[1].at("decode").at("share_of_resident").is_null());

  const Outcome none = run_sluice(joined(words, {"--modes", "off"}));
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_NE(none.out.find("512, off does not fit"), std::string::npos) << none.out;
}

TEST(BenchFromOutside, BlocksThatStayDoNotFlow) {
  const Json json = json_of(joined(small_kv({"bench", "offload"}, "512"),
                                   {"--modes", "chunked", "--device-bytes", "0,768K"}));
  const auto loaded = [&](size_t row) {
    return json.at("results")[row].at("decode").at("h2d_bytes").get<int64_t>();
  };
  EXPECT_EQ(loaded(0), 3 * 512 * kKvBytesPerToken);
  EXPECT_LT(loaded(1), loaded(0));
}

// All settings are checked before anything is measured.
TEST(BenchFromOutside, BadOptionsAreErrors) {
  const std::vector<WordsAndError> lines = {
      {{"bench", "offload", model_dir(), "--modes", "sideways"}, "--modes: 'sideways'"},
      {{"bench", "offload", model_dir(), "--slots", "1"}, "--slots: '1'"},
      {{"bench", "offload", model_dir(), "--lengths", "128", "--block-sizes", "72"}, "block_size"},
      {{"bench", "offload", model_dir(), "--lengths", "128,1M"}, "max_model_len"},
      {{"bench", "offload"}, "no model given"},
  };
  expect_usage_errors(lines);
}

}  // namespace
}  // namespace sluice::cli
