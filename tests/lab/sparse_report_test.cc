// The ratios of rows to "full".
#include "lab/sparse_report.h"

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice::lab {

using namespace cli;  // rows of benchmarks

namespace {

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
}  // namespace sluice::lab
