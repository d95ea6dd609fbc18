// What doctor says of usual models, and the plans for machines that are not here.
#include "cli/doctor/verdict.h"

#include <string>

#include <gtest/gtest.h>

#include "sluice/inspect.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

constexpr size_t kGib = size_t{1} << 30;
constexpr int64_t kTokens = 128 << 10;

EngineOptions llama_8b() {
  EngineOptions options;
  options.model = (testing::source_dir() / "models/shapes/llama-3.1-8b").string();
  options.load_format = LoadFormat::kDummy;
  options.max_model_len = kTokens;
  return options;
}

TEST(PlannedMachine, DecidesWhereKvIs) {
  const MemoryPlan large =
      plan_memory(llama_8b(), PlannedMachine{.gpu_bytes = 80 * kGib, .host_bytes = 64 * kGib});
  EXPECT_TRUE(large.fits);
  EXPECT_EQ(large.kv_offload, "off");
  EXPECT_EQ(large.device_memory_bytes, 80 * kGib);
  EXPECT_EQ(large.host_memory_bytes, 64 * kGib);
  const MemoryPlan small =
      plan_memory(llama_8b(), PlannedMachine{.gpu_bytes = 24 * kGib, .host_bytes = 64 * kGib});
  EXPECT_TRUE(small.fits) << small.remedy;
  EXPECT_NE(small.kv_offload, "off");
  EXPECT_FALSE(
      plan_memory(llama_8b(), PlannedMachine{.gpu_bytes = 8 * kGib, .host_bytes = 64 * kGib}).fits);
}

// The estimate says what the plan says.
TEST(Verdict, AgreesWithThePlan) {
  const ModelSummary summary = summarize_model(llama_8b().model);
  const UsualModel model{"it", summary.weight_bytes, summary.kv_bytes_per_token};
  for (const size_t gib : {8, 12, 24, 48, 80, 141}) {
    const MemoryPlan plan =
        plan_memory(llama_8b(), PlannedMachine{.gpu_bytes = gib * kGib, .host_bytes = 64 * kGib});
    const std::string verdict = verdict_on(
        model, kTokens,
        {.gpu_bytes = gib * kGib, .free_host_bytes = 64 * kGib, .lockable_bytes = SIZE_MAX});
    const std::string expected = !plan.fits                 ? "no"
                                 : plan.kv_offload == "off" ? "yes"
                                                            : "yes, KV in host memory";
    EXPECT_EQ(verdict.substr(0, verdict.find(':')), expected) << gib << " " << verdict;
  }
}

TEST(Verdict, NamesWhatIsTooSmall) {
  const UsualModel& model = kUsualModels[1];
  const VerdictMachine machine{.gpu_bytes = 24 * kGib,
                               .free_host_bytes = 8 * kGib,
                               .lockable_bytes = SIZE_MAX,
                               .read_bytes_per_second = 1e11};
  EXPECT_NE(verdict_on(model, kTokens, machine).find("nor in host memory"), std::string::npos);
  VerdictMachine locked = machine;
  locked.free_host_bytes = 64 * kGib;
  locked.lockable_bytes = kGib;
  EXPECT_NE(verdict_on(model, kTokens, locked).find("ulimit -l"), std::string::npos);
  VerdictMachine cpu = machine;
  cpu.gpu_bytes = 0;
  EXPECT_NE(verdict_on(model, kTokens, cpu).find("no: it needs"), std::string::npos);
  cpu.free_host_bytes = 64 * kGib;
  EXPECT_EQ(verdict_on(model, kTokens, cpu),
            "yes, on the CPU: at most 6.1 tokens a second after a short prompt");
}

}  // namespace
}  // namespace sluice::cli
