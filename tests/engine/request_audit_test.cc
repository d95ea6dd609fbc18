// sparse_audit by request: an output says what its own prefill captured, the same as if the request
// had run alone, and the engine's numbers are those of all requests together.
#include <gtest/gtest.h>

#include "engine/audited_engine.h"

namespace sluice {
namespace {

using testing::audited;
using testing::AuditedPolicy;
using testing::AuditedRun;
using testing::expect_all_same;
using testing::expect_same_mass;
using testing::expected_rows;
using testing::in_chunks;
using testing::Job;
using testing::jobs_of;
using testing::kAuditedPolicies;
using testing::kTile;
using testing::LayerMasses;
using testing::offloaded;
using testing::run_audited;

LayerMasses alone(EngineOptions options, const Job& job) {
  const AuditedRun run = run_audited(options, {job});
  expect_same_mass(run.outputs[0].captured_mass, run.mass, "the only request");
  return run.mass;
}

// Rows add up, and so do their masses.
void expect_sum(const AuditedRun& run, const std::string& what) {
  for (size_t layer = 0; layer < run.mass.size(); ++layer) {
    int64_t num_rows = 0;
    double mass = 0;
    for (const RequestOutput& output : run.outputs) {
      const MassObservations& own = output.captured_mass.at(layer);
      num_rows += own.num_rows;
      mass += own.captured.value_or(0) * static_cast<double>(own.num_rows);
    }
    ASSERT_EQ(num_rows, run.mass[layer].num_rows) << what;
    if (num_rows == 0) continue;
    EXPECT_NEAR(mass / static_cast<double>(num_rows), *run.mass[layer].captured, 1e-9) << what;
  }
}

struct Way {
  const char* name;
  EngineOptions options;
};

// Two requests side by side wherever a pass has room for both: resident, layer-wise, and in chunks
// through slots. (On a GPU one after the other.)
std::vector<Way> ways_of(const AuditedPolicy& policy) {
  const EngineOptions options = audited(policy);
  const EngineOptions chunks = in_chunks(options, testing::testing_cpu() ? 2 : 1);
  return {{", resident", options},
          {", chunks", chunks},
          {", layer-wise", offloaded(options, KvOffload::kLayerwise)},
          {", chunked", offloaded(chunks, KvOffload::kChunked)}};
}

TEST(RequestAudit, NeighboursChangeNothing) {
  const std::vector<Job> jobs = jobs_of({2000, 1600});
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    for (const Way& way : ways_of(policy)) {
      const std::string what = std::string(policy.name) + way.name;
      const AuditedRun both = run_audited(way.options, jobs);
      for (size_t i = 0; i < jobs.size(); ++i) {
        const LayerMasses& own = both.outputs[i].captured_mass;
        expect_same_mass(own, alone(way.options, jobs[i]), what);
        ASSERT_EQ(own.size(), 2u) << what;
        EXPECT_EQ(own[0].num_rows, expected_rows({jobs[i]}, 0, 1)) << what;
        EXPECT_GT(own[0].num_rows, 0) << what;
        EXPECT_LT(own[0].captured, 1) << what;
      }
      EXPECT_NE(both.outputs[0].captured_mass[0].captured,
                both.outputs[1].captured_mass[0].captured);
      expect_sum(both, what);
    }
  }
}

// On a GPU chunks have other heights than the whole prompt.
TEST(RequestAudit, WhereKvLiesAndHowAPassIsCutDoesNotMatter) {
  const std::vector<Job> jobs = jobs_of({2000, 1600});
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    const std::vector<Way> ways = ways_of(policy);
    std::vector<AuditedRun> runs;
    for (const Way& way : ways) runs.push_back(run_audited(way.options, jobs));
    for (size_t i = 1; i < ways.size(); ++i) {
      const bool is_cut = ways[i].options.prefill_chunk_tokens.has_value();
      const size_t reference = is_cut && !testing::testing_cpu() ? 1 : 0;
      for (size_t job = 0; job < jobs.size(); ++job) {
        expect_same_mass(runs[i].outputs[job].captured_mass,
                         runs[reference].outputs[job].captured_mass,
                         std::string(policy.name) + ways[i].name);
      }
    }
  }
}

TEST(RequestAudit, AShortPromptHasLayersWithoutRowsAndWithoutAuditThereAreNone) {
  EngineOptions options = audited(kAuditedPolicies[3]);
  const LayerMasses none = alone(options, jobs_of({70})[0]);
  ASSERT_EQ(none.size(), 2u);
  EXPECT_EQ(none[1].num_rows, 0);
  EXPECT_FALSE(none[1].captured.has_value());
  EXPECT_FALSE(mean_over_layers(none).captured.has_value());
  options.sparse.audit = false;
  EXPECT_TRUE(run_audited(options, jobs_of({2000})).outputs[0].captured_mass.empty());
}

// Rows that the prefix cache has are those of the request that computed them.
TEST(RequestAudit, APrefixHitIsNotMeasuredAgain) {
  EngineOptions options = audited(kAuditedPolicies[3]);
  LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
  const std::vector<Job> jobs = jobs_of({2000});
  const RequestOutput first = testing::run_jobs(engine, jobs)[0];
  std::vector<Job> longer = {{first.prompt_token_ids, jobs[0].params}};
  longer[0].prompt.resize(1100);
  const RequestOutput second = testing::run_jobs(engine, longer)[0];
  ASSERT_GE(second.num_cached_tokens, 8 * kTile);
  EXPECT_EQ(second.captured_mass.at(0).num_rows,
            expected_rows(longer, second.num_cached_tokens / kTile, 1));
  EXPECT_LT(second.captured_mass[0].num_rows, expected_rows(longer, 0, 1));
  EXPECT_EQ(engine.observations().captured_mass[0].num_rows,
            first.captured_mass.at(0).num_rows + second.captured_mass[0].num_rows);
}

// A prompt that is computed again, since its KV made room for another's, is measured once.
TEST(RequestAudit, APreemptedRequestIsMeasuredOnce) {
  const std::vector<Job> jobs = {{testing::random_tokens(1020, 1), testing::sampled(200, 1)},
                                 {testing::random_tokens(1020, 2), testing::sampled(200, 2)}};
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    EngineOptions options = audited(policy);
    options.max_num_seqs = 2;
    options.enable_prefix_caching = false;
    const size_t block_bytes = LlmEngine(options, {.device = testing::make_test_device()})
                                   .plan()
                                   .kv_layout.block_bytes_all_layers();
    options.max_model_len = 1280;
    options.kv.cache_bytes = static_cast<int64_t>(17 * block_bytes);  // prompts of 8 blocks each
    const AuditedRun run = run_audited(options, jobs);
    EXPECT_GT(run.num_preemptions, 0) << policy.name;
    for (size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_EQ(run.outputs[i].captured_mass.at(0).num_rows, expected_rows({jobs[i]}, 0, 1));
      if (!testing::testing_cpu()) continue;  // one pass has both prompts
      expect_same_mass(run.outputs[i].captured_mass, alone(options, jobs[i]), policy.name);
    }
    expect_sum(run, policy.name);
  }
}

// The same in the middle of a prompt, whose first chunks are computed twice or found in the prefix
// index. A request that decodes between the chunks takes a second block before they have ended.
TEST(RequestAudit, APromptThatIsPreemptedInTheMiddleIsMeasuredOnce) {
  const std::vector<Job> jobs = {{testing::random_tokens(126, 1), testing::sampled(12, 1)},
                                 {testing::random_tokens(2000, 2), testing::sampled(8, 2)}};
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    for (const bool caches : {false, true}) {
      EngineOptions options = in_chunks(audited(policy), 2);
      options.max_num_batched_tokens = 4 * kTile;
      options.enable_prefix_caching = caches;
      const size_t block_bytes = LlmEngine(options, {.device = testing::make_test_device()})
                                     .plan()
                                     .kv_layout.block_bytes_all_layers();
      options.kv.cache_bytes = static_cast<int64_t>(17 * block_bytes);
      LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
      const std::vector<RequestOutput> outputs = testing::run_jobs(engine, jobs);
      EXPECT_GT(engine.stats().num_preemptions, 0) << policy.name;
      const int64_t num_twice = caches ? 0 : 8 * kTile;
      EXPECT_GE(engine.stats().num_prompt_tokens, 126 + 2000 + num_twice);
      EXPECT_LT(engine.stats().num_prompt_tokens, 126 + 2 * 2000);
      const LayerMasses& own = outputs[1].captured_mass;
      EXPECT_EQ(own.at(0).num_rows, expected_rows({jobs[1]}, 0, 1)) << policy.name;
      EXPECT_EQ(own[0].num_rows, engine.observations().captured_mass.at(0).num_rows);
      if (!testing::testing_cpu()) continue;  // a pass may have both prompts
      expect_same_mass(own, alone(options, jobs[1]), policy.name);
    }
  }
}

// The rows of a pass that was cancelled from inside are computed again, and count then.
TEST(RequestAudit, ACancelledPassCountsNothing) {
  const Job job = jobs_of({2000})[0];
  const EngineOptions options = audited(kAuditedPolicies[3]);
  LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
  engine.add_request(job.prompt, job.params);
  int num_heard = 0;
  const PassWatch watch{.on_progress = [&](int64_t) { ++num_heard; },
                        .should_cancel = [&] { return num_heard >= 2; }};
  EXPECT_TRUE(engine.step(&watch).empty());
  EXPECT_EQ(engine.stats().num_prompt_tokens, 0) << "the pass was not cancelled";
  EXPECT_TRUE(engine.observations().captured_mass.empty());
  std::vector<RequestOutput> outputs;
  testing::run_steps(engine, 100, outputs);
  ASSERT_EQ(outputs.size(), 1u);
  expect_same_mass(outputs[0].captured_mass, alone(options, job), "computed again");
  expect_same_mass(engine.observations().captured_mass, outputs[0].captured_mass, "all");
}

TEST(RequestAudit, ACancelledRequestSaysWhatWasMeasured) {
  const EngineOptions options = in_chunks(audited(kAuditedPolicies[3]));
  LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
  const Job job = jobs_of({2000})[0];
  const SequenceId id = engine.add_request(job.prompt, job.params);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine.step().empty());
  engine.cancel_request(id);
  const std::vector<RequestOutput> outputs = engine.step();
  ASSERT_EQ(outputs.size(), 1u);
  Job done = job;
  done.prompt.resize(3 * 4 * kTile);
  EXPECT_EQ(outputs[0].captured_mass.at(0).num_rows, expected_rows({done}, 0, 0));
  EXPECT_GT(outputs[0].captured_mass[0].num_rows, 0);
}

TEST(RequestAudit, PartsOfAnOutputCarryItAtTheEnd) {
  const EngineOptions options = audited(kAuditedPolicies[3]);
  LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
  Job job = jobs_of({1500})[0];
  job.params.output_kind = OutputKind::kDelta;
  engine.add_request(job.prompt, job.params);
  RequestOutput whole;
  while (engine.has_unfinished()) {
    for (RequestOutput& part : engine.step()) {
      EXPECT_EQ(part.captured_mass.empty(), !part.finished());
      whole.append(std::move(part));
    }
  }
  expect_same_mass(whole.captured_mass, alone(options, jobs_of({1500})[0]), "parts");
}

TEST(RequestAudit, MeanOverLayersLeavesOutLayersWithoutRows) {
  const LayerMasses layers = {
      {.num_rows = 0, .num_skipped = 0},
      {.num_rows = 4, .captured = 0.5, .standard_error = 0.02},
      {.num_rows = 1, .num_skipped = 1, .captured = 0.75},
      {.num_rows = 3, .num_skipped = 1, .captured = 0.625, .standard_error = 0.04}};
  const MassObservations mean = mean_over_layers(layers);
  EXPECT_EQ(mean.num_rows, 4);
  EXPECT_EQ(mean.num_skipped, 1);
  EXPECT_DOUBLE_EQ(mean.captured.value_or(0), 0.625);
  EXPECT_DOUBLE_EQ(mean.standard_error.value_or(0), 0.03) << "of the layers that have one";
  EXPECT_FALSE(mean_over_layers({layers[2]}).standard_error.has_value()) << "one row has no spread";
}

// Factors of the t distribution from a table: 2.262 with 9 degrees, 1.984 with 99.
TEST(RequestAudit, ARangeNeedsTenRows) {
  MassObservations mass = {.num_rows = 9, .captured = 0.5, .standard_error = 0.01};
  EXPECT_FALSE(range_of(mass).has_value());
  EXPECT_FALSE(range_of({.num_rows = 100}).has_value()) << "none could be measured";
  mass.num_rows = 10;
  ASSERT_TRUE(range_of(mass).has_value());
  EXPECT_NEAR(range_of(mass)->least, 0.5 - 0.02262, 5e-5);
  EXPECT_NEAR(range_of(mass)->most, 0.5 + 0.02262, 5e-5);
  mass.num_rows = 100;
  EXPECT_NEAR(range_of(mass)->most, 0.5 + 0.01984, 5e-5);
  mass.captured = 0.99;
  EXPECT_EQ(range_of(mass)->most, 1);
}

}  // namespace
}  // namespace sluice
