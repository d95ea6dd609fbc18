// Fair steps in the engine: whatever a clock makes of the lengths of passes, every request has the
// bits that it has alone, and running requests get tokens between the passes of a long prompt.
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "engine/scoped_engine.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::ScopedPolicy;

// A clock of which every step takes another time, up to 4 ms.
std::function<int64_t()> random_clock(uint64_t seed) {
  return [state = seed, now_ns = int64_t{0}]() mutable {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return now_ns += static_cast<int64_t>((state >> 33) % 4'000'000);
  };
}

std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {470, 20, 300, 129, 64, 401}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(12, length)});
  }
  return jobs;
}

class FairSteps : public ::testing::Test {
 protected:
  // An engine whose passes are cut to 2 ms by a random clock.
  static std::unique_ptr<LlmEngine> engine(EngineOptions options,
                                           const std::optional<ScopedPolicy::Options>& policy,
                                           uint64_t seed) {
    options.max_stall_ms = 2;
    LlmEngine::Parts parts{.device = make_device("cpu", {.num_threads = 2}),
                           .now_ns = random_clock(seed)};
    if (policy) parts.policies = testing::make_scoped(*policy);
    return std::make_unique<LlmEngine>(options, std::move(parts));
  }

  // Runs all jobs together with several clocks, and compares with each job alone without a limit.
  void expect_same_bits(const EngineOptions& options,
                        const std::optional<ScopedPolicy::Options>& policy,
                        const std::string& what) const {
    std::vector<RequestOutput> alone;
    for (const Job& job : jobs_) {
      LlmEngine::Parts parts{.device = make_device("cpu", {.num_threads = 2})};
      if (policy) parts.policies = testing::make_scoped(*policy);
      LlmEngine fresh(options, std::move(parts));
      alone.push_back(run_jobs(fresh, {job})[0]);
    }
    std::set<int64_t> num_steps;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const auto together = engine(options, policy, seed);
      expect_all_same(run_jobs(*together, jobs_), alone, what + ", clock " + std::to_string(seed));
      num_steps.insert(together->observations().prefill.num_steps);
    }
    EXPECT_GT(num_steps.size(), 1u) << what << ": every clock made the same passes";
  }

  const std::vector<Job> jobs_ = make_jobs();
};

TEST_F(FairSteps, TheClockChangesNoBit) {
  EngineOptions resident = testing::scoped_resident();
  resident.max_num_batched_tokens = 512;
  expect_same_bits(resident, {}, "resident");
  EngineOptions chunked = testing::scoped_offloaded(KvOffload::kChunked, 16);
  chunked.max_num_batched_tokens = 512;
  expect_same_bits(chunked, {}, "chunked");
}

TEST_F(FairSteps, TheClockChangesNoSelection) {
  const ScopedPolicy::Options policy{.scope_tokens = 128, .looks_at = 128};
  EngineOptions resident = testing::scoped_resident();
  resident.max_num_batched_tokens = 512;
  expect_same_bits(resident, policy, "resident");
  EngineOptions chunked = testing::scoped_offloaded(KvOffload::kChunked, 128);
  chunked.max_num_batched_tokens = 512;
  expect_same_bits(chunked, policy, "chunked");
}

TEST_F(FairSteps, RunningRequestsGetTokensBetweenPasses) {
  EngineOptions options = testing::scoped_resident();
  options.max_num_batched_tokens = 32;
  LlmEngine llm(options, {.device = make_device("cpu", {.num_threads = 2})});
  Job running{random_tokens(20, 1), sampled(60, 1)};
  running.params.output_kind = OutputKind::kDelta;
  llm.add_request(running.prompt, running.params);
  llm.step();
  const SequenceId id = llm.add_request(jobs_[0].prompt, jobs_[0].params);
  int num_tokens = 0;
  while (llm.observations().prefill.num_tokens < 20 + 470) {
    for (const RequestOutput& output : llm.step()) {
      ASSERT_NE(output.request_id, id.value);
      num_tokens += static_cast<int>(output.token_ids.size());
    }
  }
  EXPECT_EQ(num_tokens, (470 + 31) / 32) << "one before each of 15 passes";
}

}  // namespace
}  // namespace sluice
