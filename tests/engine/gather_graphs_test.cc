// Offloaded decode steps, with gathers or without transfers, replayed as graphs: the same bits and
// counters as ungraphed steps, whatever happens between two steps (flushes, preemption, other
// prefills, evicted blocks).
//
// Runs on the device under test; the CPU replays graphs only in tests.
#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "support/hooked_device.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/sample_of.h"
#include "support/seeds.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::kTinyQwen;
using testing::random_tokens;
using testing::sampled;

constexpr size_t kBlockBytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // of 16 tokens, all layers

struct Place {
  const char* mode = "chunked";
  int32_t block_tokens = 16;
  int32_t num_slots = 2;
  int32_t slot_blocks = 1;
  int32_t resident_blocks = 0;
};

std::string describe(const std::string& policy, const Place& place) {
  return policy + " " + place.mode + ", blocks of " + std::to_string(place.block_tokens) + ", " +
         std::to_string(place.num_slots) + " slots of " + std::to_string(place.slot_blocks) + ", " +
         std::to_string(place.resident_blocks) + " resident";
}

EngineOptions offloaded(const std::string& policy, const Place& place) {
  EngineOptions options = testing::tiny_options(kTinyQwen);
  options.sparse.policy = policy;
  if (policy != "full") {
    options.sparse.page_tokens = 16;
    options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
    options.sparse.threshold_tokens = 40;  // shorter sequences select everything
  }
  if (policy.ends_with("quest")) options.sparse.topk_tokens = 48;
  options.kv.offload = testing::kv_offload_named(place.mode);
  options.kv.block_size = place.block_tokens;
  options.kv.num_slots = place.num_slots;
  options.kv.slot_blocks = place.slot_blocks;
  options.kv.host_bytes = 4 << 20;
  options.kv.device_bytes = place.resident_blocks * place.block_tokens / 16 * int64_t{kBlockBytes};
  options.max_num_seqs = 4;
  if (options.kv.offload == KvOffload::kChunked) {
    options.prefill_chunk_tokens = 64;
    options.max_num_batched_tokens = 128;
  }
  return options;
}

enum class GatherSteps { kPlain, kPadded, kGraphs };

std::unique_ptr<LlmEngine> make_engine(EngineOptions options, GatherSteps steps,
                                       uint64_t seed = 0) {
  options.enforce_eager = steps != GatherSteps::kGraphs;
  const auto adjust = [&](EnginePlan& plan) {
    const int64_t block_bytes = *options.kv.block_size / 16 * int64_t{kBlockBytes};
    if (offloads(plan)) testing::keep_blocks(plan, *options.kv.device_bytes / block_bytes);
    if (steps != GatherSteps::kPlain) testing::forced_graphs(options)(plan);
  };
  auto device =
      testing::make_hooked_device(options.device, {.num_threads = 2}, {.schedule_seed = seed});
  return std::make_unique<LlmEngine>(options, LlmEngine::Parts{.device = std::move(device),
                                                               .policies = make_policies(options),
                                                               .adjust_plan = adjust});
}

std::vector<RequestOutput> run(const EngineOptions& options, const std::vector<Job>& jobs,
                               GatherSteps steps) {
  return testing::run_jobs(*make_engine(options, steps), jobs);
}

// More jobs than a batch holds, so that sequences start and end. Some have no sealed block at
// first, some are below the threshold; all cross block borders, so that tails are flushed between
// replays.
std::vector<Job> gather_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {3, 15, 16, 33, 70, 127, 250}) {
    const auto max_tokens = static_cast<int32_t>(30 + length % 40);
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(max_tokens, 1)});
  }
  return jobs;
}

const std::vector<std::string> kPolicies = {"full+quest", "full+streaming", "streaming+quest"};
const std::vector<std::string> kPoliciesInPlace = {"full", "full+quest", "streaming+quest"};

const Place kPlaces[] = {{"chunked", 16, 2, 1},
                         {"chunked", 16, 3, 4},
                         {"chunked", 64, 2, 1},
                         {"layerwise", 16, 4, 2},
                         {"chunked", 16, 2, 1, 30}};

TEST(GatherGraphs, EqualStepsLaunchedOneByOne) {
  size_t index = 0;
  for (const std::string& policy : kPolicies) {
    for (const Place& place : kPlaces) {
      if (!testing::in_sample(index++, 4)) continue;
      const EngineOptions options = offloaded(policy, place);
      const auto padded = make_engine(options, GatherSteps::kPadded);
      const auto graphs = make_engine(options, GatherSteps::kGraphs);
      const std::string what = describe(policy, place);
      const std::vector<RequestOutput> reference = testing::run_jobs(*padded, gather_jobs());
      expect_all_same(testing::run_jobs(*graphs, gather_jobs()), reference, what);
      EXPECT_EQ(padded->stats().num_graph_launches, 0);
      EXPECT_GT(graphs->stats().num_graph_launches, 40) << what;
      const PhaseObservations a = padded->observations().decode;
      const PhaseObservations b = graphs->observations().decode;
      EXPECT_GT(b.num_loads, 0) << what;
      EXPECT_EQ(a.num_loads, b.num_loads) << what;
      EXPECT_EQ(a.num_copies, b.num_copies) << what;
      for (size_t layer = 0; layer < a.layers.size(); ++layer) {
        EXPECT_EQ(a.layers[layer].h2d_bytes, b.layers[layer].h2d_bytes) << what;
        EXPECT_EQ(a.layers[layer].d2h_bytes, b.layers[layer].d2h_bytes) << what;
      }
    }
  }
}

TEST(GatherGraphs, EqualResidentGraphs) {
  for (const std::string& policy : kPolicies) {
    for (const Place& place : {kPlaces[0], kPlaces[3], kPlaces[4]}) {
      EngineOptions options = offloaded(policy, place);
      // Offloaded spans end at block borders, so passes of several sequences have other heights.
      if (!testing::testing_cpu()) options.max_num_seqs = 1;
      EngineOptions resident = options;
      resident.kv.offload = KvOffload::kOff;
      resident.kv.cache_bytes = 4 << 20;
      expect_all_same(run(options, gather_jobs(), GatherSteps::kGraphs),
                      run(resident, gather_jobs(), GatherSteps::kGraphs), describe(policy, place));
    }
  }
}

TEST(GatherGraphs, PaddingChangesNoBitWhereRowsAreIndependent) {
  if (!testing::testing_cpu())
    GTEST_SKIP() << "skipped: products of another height round otherwise";
  for (const Place& place : kPlaces) {
    const EngineOptions options = offloaded("full+quest", place);
    expect_all_same(run(options, gather_jobs(), GatherSteps::kGraphs),
                    run(options, gather_jobs(), GatherSteps::kPlain),
                    describe("full+quest", place));
  }
}

// Preempted sequences lose their blocks and compute their rows again as prompts.
TEST(GatherGraphs, PreemptedAlikeTheyEqualOthers) {
  std::vector<Job> jobs;
  for (const int64_t length : {200, 205, 210}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(40, length)});
  }
  EngineOptions options = offloaded("full+quest", {"chunked", 16, 2, 2});
  options.max_model_len = 448;
  options.kv.host_bytes = 44 * kBlockBytes;  // the prompts take 41
  const auto padded = make_engine(options, GatherSteps::kPadded);
  const auto graphs = make_engine(options, GatherSteps::kGraphs);
  const std::vector<RequestOutput> reference = testing::run_jobs(*padded, jobs);
  expect_all_same(testing::run_jobs(*graphs, jobs), reference, "preempted");
  EXPECT_GT(graphs->stats().num_preemptions, 0) << "the test did not preempt anything";
  EXPECT_EQ(graphs->stats().num_preemptions, padded->stats().num_preemptions);
  EXPECT_GT(graphs->stats().num_graph_launches, 20);
}

// Two requests decode while others arrive. All but one of these are cancelled within their prompt,
// when loads for its next chunk are already on the way to slots that the next replay uses.
std::vector<RequestOutput> run_with_visitors(LlmEngine& engine) {
  std::vector<RequestOutput> finished;
  const auto steps = [&](int count) { testing::run_steps(engine, count, finished); };
  engine.add_request(random_tokens(100, 1), sampled(80, 1));
  engine.add_request(random_tokens(45, 2), sampled(70, 2));
  steps(8);
  for (uint64_t visit = 0; visit < 6; ++visit) {
    const SequenceId visitor = engine.add_request(random_tokens(300, 10 + visit), sampled(9, 3));
    steps(visit % 2 == 0 ? 2 : 3);  // chunks of 64
    if (visit != 3) engine.cancel_request(visitor);
    steps(5);
  }
  steps(1000);
  return finished;
}

TEST(GatherGraphs, PrefillsInBetweenDoNotDisturbThem) {
  for (const Place& place : kPlaces) {
    const EngineOptions options = offloaded("full+quest", place);
    const auto padded = make_engine(options, GatherSteps::kPadded);
    const auto graphs = make_engine(options, GatherSteps::kGraphs);
    const std::vector<RequestOutput> reference = run_with_visitors(*padded);
    EXPECT_EQ(reference.size(), 8u);
    expect_all_same(run_with_visitors(*graphs), reference, describe("full+quest", place));
    EXPECT_GT(graphs->stats().num_graph_launches, 50);
  }
}

TEST(GatherGraphs, TheScheduleOfStreamsDoesNotMatter) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: offload_test delays a GPU's streams";
  const EngineOptions options = offloaded("full+quest", {"chunked", 16, 2, 1});
  const std::vector<RequestOutput> jobs = run(options, gather_jobs(), GatherSteps::kPlain);
  const std::vector<RequestOutput> visited =
      run_with_visitors(*make_engine(options, GatherSteps::kPlain));
  for (const uint64_t seed : testing::test_seeds(2)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_all_same(
        testing::run_jobs(*make_engine(options, GatherSteps::kGraphs, seed), gather_jobs()), jobs,
        "jobs");
    expect_all_same(run_with_visitors(*make_engine(options, GatherSteps::kGraphs, seed)), visited,
                    "visitors");
  }
}

// ---- Sequences that are completely on the device ---------------------------------------------

// Places for resident blocks: none, some, enough for short sequences, enough for all.
TEST(InPlace, AnyBudgetGivesTheSameBits) {
  for (const std::string& policy : kPoliciesInPlace) {
    for (const int32_t block_tokens : {16, 64}) {
      Place place{"chunked", block_tokens, 2, 1, 0};
      const std::vector<RequestOutput> reference =
          run(offloaded(policy, place), gather_jobs(), GatherSteps::kPadded);
      for (const int32_t resident_blocks : {5, 30, 200}) {
        place.resident_blocks = resident_blocks;
        const EngineOptions options = offloaded(policy, place);
        for (const GatherSteps steps : {GatherSteps::kPadded, GatherSteps::kGraphs}) {
          const auto engine = make_engine(options, steps);
          expect_all_same(testing::run_jobs(*engine, gather_jobs()), reference,
                          describe(policy, place));
          if (resident_blocks < 200) continue;
          const PhaseObservations decode = engine->observations().decode;
          EXPECT_EQ(decode.num_loads, 0) << "something came";
          EXPECT_EQ(decode.layers[0].h2d_bytes, 0);
          if (steps == GatherSteps::kGraphs) {
            EXPECT_GT(engine->stats().num_graph_launches, 40);
          }
        }
      }
    }
  }
}

struct Crossing {
  std::vector<RequestOutput> outputs;
  int64_t num_loads[3];  // after each job
  int64_t num_graphs;
};

// A context outgrows its 12 places; later, short contexts fit again.
Crossing run_crossing(const std::string& policy, int32_t resident_blocks, GatherSteps steps) {
  EngineOptions options = offloaded(policy, {"chunked", 16, 2, 2, resident_blocks});
  options.max_num_seqs = 1;
  options.enable_prefix_caching = false;
  const auto engine = make_engine(options, steps);
  const std::vector<Job> jobs = {{random_tokens(20, 1), sampled(30, 1)},
                                 {random_tokens(160, 2), sampled(80, 2)},
                                 {random_tokens(50, 3), sampled(40, 3)}};
  Crossing crossing{};
  for (size_t i = 0; i < jobs.size(); ++i) {
    crossing.outputs.push_back(testing::run_jobs(*engine, {jobs[i]})[0]);
    crossing.num_loads[i] = engine->observations().decode.num_loads;
  }
  crossing.num_graphs = engine->stats().num_graph_launches;
  return crossing;
}

TEST(InPlace, StepsCrossFromItToTransfersAndBack) {
  for (const std::string& policy : kPoliciesInPlace) {
    SCOPED_TRACE(policy);
    const Crossing all_moved = run_crossing(policy, 0, GatherSteps::kPadded);
    for (const GatherSteps steps :
         {GatherSteps::kPlain, GatherSteps::kPadded, GatherSteps::kGraphs}) {
      if (steps == GatherSteps::kPlain && !testing::testing_cpu())
        continue;  // of other heights there
      const Crossing crossing = run_crossing(policy, 12, steps);
      expect_all_same(crossing.outputs, all_moved.outputs, policy);
      EXPECT_EQ(crossing.num_loads[0], 0);
      EXPECT_GT(crossing.num_loads[1], 0);
      EXPECT_LT(crossing.num_loads[1], all_moved.num_loads[1] / 2);
      EXPECT_EQ(crossing.num_loads[2], crossing.num_loads[1]) << "the third job fits again";
      if (steps == GatherSteps::kGraphs) {
        EXPECT_GT(crossing.num_graphs, 100);
      }
    }
  }
}

TEST(InPlace, TheScheduleOfStreamsDoesNotMatter) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: offload_test delays a GPU's streams";
  for (const std::string policy : {"full", "full+quest"}) {
    const EngineOptions options = offloaded(policy, {"chunked", 16, 2, 1, 12});
    const std::vector<RequestOutput> jobs = run(options, gather_jobs(), GatherSteps::kPlain);
    for (const uint64_t seed : testing::test_seeds(3)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      for (const GatherSteps steps : {GatherSteps::kPlain, GatherSteps::kGraphs}) {
        expect_all_same(testing::run_jobs(*make_engine(options, steps, seed), gather_jobs()), jobs,
                        policy);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
