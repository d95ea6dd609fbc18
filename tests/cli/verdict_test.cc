// What doctor says of usual models, and the plans for machines that are not here.
#include "cli/doctor/verdict.h"

#include <algorithm>
#include <string>
#include <utility>

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

std::string verdict_of_plan(const MemoryPlan& plan) {
  if (!plan.fits) return "no";
  const bool has_kv = plan.kv_offload != "off";
  const bool has_experts = std::ranges::any_of(
      plan.entries, [](const MemoryPlanEntry& entry) { return entry.name == "experts"; });
  if (!has_kv && !has_experts) return "yes";
  return std::string("yes, ") + (has_experts ? "experts " : "") +
         (has_kv ? has_experts ? "and KV " : "KV " : "") + "in host memory";
}

// The estimate says what the plan says.
void expect_agreement(const UsualModel& model, const std::string& shape, size_t host_gib) {
  EngineOptions options = llama_8b();
  options.model = (testing::source_dir() / "models/shapes" / shape).string();
  for (const size_t gib : {8, 12, 24, 32, 48, 72, 80, 96, 141}) {
    const MemoryPlan plan = plan_memory(
        options, PlannedMachine{.gpu_bytes = gib * kGib, .host_bytes = host_gib * kGib});
    const std::string verdict = verdict_on(
        model, kTokens,
        {.gpu_bytes = gib * kGib, .free_host_bytes = host_gib * kGib, .lockable_bytes = SIZE_MAX});
    EXPECT_EQ(verdict.substr(0, verdict.find(':')), verdict_of_plan(plan))
        << shape << " on " << gib << " with " << host_gib << ": " << verdict;
  }
}

TEST(Verdict, AgreesWithThePlan) {
  const ModelSummary summary = summarize_model(llama_8b().model);
  expect_agreement({"it", summary.weight_bytes, summary.kv_bytes_per_token}, "llama-3.1-8b", 64);
}

TEST(Verdict, AgreesWithPlansOfHybrids) {
  const std::pair<const char*, const UsualModel&> hybrids[] = {
      {"qwen3.5-27b", kUsualModels[3]}, {"qwen3.5-35b-a3b", kUsualModels[4]}};
  for (const auto& [shape, model] : hybrids) {
    const ModelSummary summary =
        summarize_model((testing::source_dir() / "models/shapes" / shape).string());
    const auto weight_bytes = static_cast<double>(summary.weight_bytes);
    EXPECT_NEAR(static_cast<double>(model.weight_bytes), weight_bytes, 1e6);
    EXPECT_EQ(model.kv_bytes_per_token, summary.kv_bytes_per_token);
    EXPECT_EQ(model.state_bytes, summary.state_bytes);
    const auto active_bytes = static_cast<double>(summary.active_weight_bytes);
    EXPECT_NEAR(model.active_bytes > 0 ? static_cast<double>(model.active_bytes) : weight_bytes,
                active_bytes, 1e6);
    for (const size_t host_gib : {16, 512}) expect_agreement(model, shape, host_gib);
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
  // Of a mixture a token reads a part.
  cpu.free_host_bytes = 96 * kGib;
  EXPECT_EQ(verdict_on(kUsualModels[4], kTokens, cpu),
            "yes, on the CPU: at most 14.5 tokens a second after a short prompt");
}

}  // namespace
}  // namespace sluice::cli
