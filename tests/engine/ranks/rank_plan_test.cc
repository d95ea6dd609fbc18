// Plans of several ranks: what GPUs take for their sums, how little memory one of them may have,
// and what more of them gain.
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "device/collectives.h"
#include "engine/plan/rank_options.h"
#include "sluice/inspect.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

MemoryPlan plan_of(const std::string& shape, int32_t num_ranks,
                   KvOffload kv_offload = KvOffload::kAuto) {
  EngineOptions options;
  options.kv.offload = kv_offload;
  options.model = testing::source_dir() / "models/shapes" / shape;
  options.tensor_parallel_size = num_ranks;
  options.max_model_len = 4096;
  return plan_memory(options, {.gpu_bytes = size_t{80} << 30, .host_bytes = size_t{64} << 30});
}

size_t bytes_of(const MemoryPlan& plan, const std::string& name) {
  size_t bytes = 0;
  for (const MemoryPlanEntry& entry : plan.entries) {
    if (entry.name == name) bytes += entry.bytes;
  }
  return bytes;
}

TEST(RankPlan, GpusHaveMemoryForTheirSums) {
  EXPECT_EQ(bytes_of(plan_of("llama-3.1-8b", 1), "sums over ranks"), 0u);
  for (const int32_t num_ranks : {2, 4, 8}) {
    const size_t bytes = bytes_of(plan_of("llama-3.1-8b", num_ranks), "sums over ranks");
    EXPECT_EQ(bytes, collectives_bytes(DeviceKind::kCuda, num_ranks));
    EXPECT_GT(bytes, size_t{8} << 20);
    EXPECT_LT(bytes, size_t{32} << 20);
  }
}

TEST(RankPlan, WeightsAreDivided) {
  const auto weights = [](int32_t num_ranks) {
    return static_cast<double>(bytes_of(plan_of("llama-3.1-8b", num_ranks), "weights"));
  };
  EXPECT_LT(weights(2), 0.6 * weights(1));  // embedding and head are whole on each
  EXPECT_GT(weights(2), 0.5 * weights(1));
}

// More slots, since a slot has the heads of a rank alone.
TEST(RankPlan, ARingHasItsBytesWithAnyNumberOfRanks) {
  const auto ring = [](int32_t num_ranks) {
    return bytes_of(plan_of("llama-3.1-8b", num_ranks, KvOffload::kChunked), "KV ring and stage");
  };
  EXPECT_GT(ring(1), 0u);
  // The stage alone is divided: its tokens are those of a pass.
  EXPECT_LE(ring(2), ring(1));
  EXPECT_GT(ring(2), ring(1) / 4 * 3);
}

// There a slot is a thread, and copies share nothing but memory.
TEST(RankPlan, ARingOfACpuHasAsManySlotsWithMoreRanks) {
  const auto ring = [](std::optional<int32_t> num_slots) {
    EngineOptions options;
    options.model = testing::source_dir() / "models/needle";
    options.device = "cpu";
    options.tensor_parallel_size = 2;
    options.kv.offload = KvOffload::kChunked;
    options.kv.num_slots = num_slots;
    return bytes_of(plan_memory(options), "KV ring and stage");
  };
  EXPECT_EQ(ring(std::nullopt), ring(4));
  EXPECT_NE(ring(std::nullopt), ring(8));
}

// Measured on two H200s: 1.53 for the 8B shape after 1K tokens, 0.74 to 0.9 for the 0.6B shape; on
// four H100s 2.3.
TEST(RankPlan, TheExpectedGainIsNearTheMeasuredOne) {
  const DecodeWork large{.weight_bytes = size_t{15} << 30, .num_layers = 32};
  EXPECT_NEAR(expected_decode_ratio(large, 2), 1.53, 0.1);
  EXPECT_NEAR(expected_decode_ratio(large, 4), 2.3, 0.2);
  const DecodeWork small{.weight_bytes = size_t{1200} << 20, .num_layers = 28};
  EXPECT_LT(expected_decode_ratio(small, 2), 1.0);
  EXPECT_EQ(expected_decode_ratio(small, 1), 1.0);
}

TEST(RankPlan, SmallModelsAreSaidNotToPay) {
  const auto note = [](const char* shape) {
    for (const std::string& line : plan_of(shape, 2).notes) {
      if (line.find("times the rate of one GPU") != std::string::npos) return line;
    }
    return std::string();
  };
  EXPECT_NE(note("qwen3-0.6b").find("do not pay there"), std::string::npos) << note("qwen3-0.6b");
  EXPECT_NE(note("llama-3.1-8b"), "");
  EXPECT_EQ(note("llama-3.1-8b").find("do not pay"), std::string::npos) << note("llama-3.1-8b");
}

TEST(RankPlan, TheGpuWithLeastMemoryCounts) {
  const DeviceInfo a{.name = "a", .total_memory_bytes = 80, .free_memory_bytes = 70};
  const DeviceInfo b{.name = "b", .total_memory_bytes = 90, .free_memory_bytes = 20};
  const DeviceInfo least = with_least_memory(a, b);
  EXPECT_EQ(least.total_memory_bytes, 80u);
  EXPECT_EQ(least.free_memory_bytes, 20u);
  EXPECT_EQ(least.name, "a");
}

}  // namespace
}  // namespace sluice
