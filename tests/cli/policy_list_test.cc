// Lists of configurations: which options reach which policy, and the ratios of rows to "full".
#include "cli/policy_list.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/bench/sparse_report.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

std::string refusal(const std::vector<std::string>& names, const SparseOptions& common) {
  try {
    policy_list(names, common);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(PolicyList, GivesEachPolicyTheOptionsThatItUses) {
  SparseOptions common;
  common.probe_rows = 8;
  common.page_tokens = 16;
  common.tail_tokens = 0;
  const auto policies =
      policy_list({"full", "aggressive", "sampled+quest", "avgpool+full"}, common);
  ASSERT_EQ(policies.size(), 4u);
  EXPECT_EQ(describe_policy(policies[0].sparse), "full");
  EXPECT_EQ(describe_policy(policies[1].sparse),
            "xattention+quest, topk 512, page 16, coverage 0.8, stride 16, tail 0");
  EXPECT_EQ(describe_policy(policies[2].sparse), "sampled+quest, page 16, probe rows 8, tail 0");
  EXPECT_EQ(describe_policy(policies[3].sparse), "avgpool+full, tail 0");
  EXPECT_EQ(policies[1].name, "aggressive");
  EXPECT_EQ(policy_lines(policies),
            (std::vector<std::string>{
                "aggressive: xattention+quest, topk 512, page 16, coverage 0.8, stride 16, tail 0",
                "sampled+quest, page 16, probe rows 8, tail 0", "avgpool+full, tail 0"}))
      << "full says all";
}

TEST(PolicyList, RefusesWhatNoPolicyUsesAndWhatContradicts) {
  SparseOptions common;
  EXPECT_NE(refusal({"full", "no-such"}, common).find("no-such"), std::string::npos);
  EXPECT_NE(refusal({"full", "quest"}, common).find("full+quest"), std::string::npos);
  EXPECT_NE(refusal({"full", "full"}, common).find("twice"), std::string::npos);
  common.stride = 8;
  EXPECT_NE(refusal({"full", "sampled+quest"}, common)
                .find("--sparse-stride is given, but none of the policies uses it: full, sampled"),
            std::string::npos);
  EXPECT_NE(refusal({"aggressive"}, common).find("--sparse-stride is 8"), std::string::npos);
  EXPECT_EQ(refusal({"xattention+quest", "sampled+quest"}, common), "");
}

TEST(Spread, TheMedianOfTwoIsBetweenThem) {
  EXPECT_EQ(spread_of({4, 1}).median, 2.5);
  EXPECT_EQ(spread_of({4, 1, 9}).median, 4);
  EXPECT_EQ(spread_of({4, 1, 9, 6}).median, 5);
}

// A row with these rates and bytes; `speed` 0: it did not fit.
KvRow row_of(const std::string& policy, KvOffload mode, double speed, double bytes) {
  KvRow row;
  row.policy = policy;
  row.engine.sparse.policy = policy;
  row.engine.kv.offload = mode;
  row.work = {.prompt_tokens = 1024, .decode_tokens = 3};
  if (speed == 0) {
    row.does_not_fit = "no";
    return row;
  }
  const PhaseResult phase{.tokens_per_second = {speed, speed, speed},
                          .num_tokens = 2,
                          .seconds = 2 / speed,
                          .h2d_bytes = bytes,
                          .d2h_bytes = bytes / 4,
                          .density_selected = {}};
  row.result = {.kv_offload = "", .prefill = phase, .decode = phase, .captured = {}};
  row.planned_device_bytes = 1;
  return row;
}

TEST(SparseReport, ComparesRowsWithKvInTheSamePlace) {
  std::vector<KvRow> rows = {row_of("full", KvOffload::kOff, 10, 0),
                             row_of("aggressive", KvOffload::kOff, 30, 0),
                             row_of("full", KvOffload::kChunked, 5, 800),
                             row_of("aggressive", KvOffload::kChunked, 20, 200),
                             row_of("full", KvOffload::kLayerwise, 0, 0),
                             row_of("aggressive", KvOffload::kLayerwise, 20, 200)};
  const PhaseRatios resident = ratios_to_full(rows, rows[1], &KvResult::prefill);
  EXPECT_EQ(resident.speed, 3);
  EXPECT_FALSE(resident.bytes) << "nothing moves";
  const PhaseRatios chunked = ratios_to_full(rows, rows[3], &KvResult::decode);
  EXPECT_EQ(chunked.speed, 4);
  EXPECT_EQ(chunked.bytes, 0.25);
  EXPECT_FALSE(ratios_to_full(rows, rows[5], &KvResult::decode).speed) << "full did not fit";

  const auto json = sparse_json(rows, {.to_device = {1, 1, 1}, .to_host = {1, 1, 1}, .both = {}});
  EXPECT_EQ(json[3].at("decode").at("speed_of_full"), 4);
  EXPECT_TRUE(json[5].at("decode").at("speed_of_full").is_null());
  EXPECT_TRUE(json[1].at("prefill").at("captured_mass").is_null());
  EXPECT_EQ(json[4].at("does_not_fit"), "no");
  rows[3].result->captured = {.mean = 0.913, .lowest_layer = 0.84, .num_rows = 12};
  const std::string tables =
      sparse_tables(rows, {.to_device = {1, 1, 1}, .to_host = {1, 1, 1}, .both = {}});
  EXPECT_NE(tables.find("91.3 % (84.0 %)"), std::string::npos) << tables;
}

}  // namespace
}  // namespace sluice::cli
