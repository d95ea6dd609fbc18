// Invariants 5 to 11 of docs/architecture.md as metamorphic pairs: two ways to compute the same
// thing must give the same bits (on a GPU: alike, where the height of a matrix product changes).
// Runs are compared by the log-probabilities of the 20 most likely tokens of every step: a single
// changed bit in a logit shows in them. The Leaks tests compare memory and block counters after
// many requests.
#include <cstring>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/hooked_device.h"
#include "support/run_bits.h"
#include "support/sanitizer.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::expect_same_bits;
using testing::Job;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::tiny_options;

constexpr const char* kModel = "qwen3-group2-tied";

// Lengths around block and tile borders, decoding past more than two block boundaries of 16.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 15, 16, 17, 55, 64, 200}) {
    const auto seed = static_cast<uint64_t>(length);
    jobs.push_back({random_tokens(length, seed), sampled(40, static_cast<int64_t>(seed))});
  }
  return jobs;
}

// Each request alone, in a new engine.
std::vector<RequestOutput> run_in_fresh_engines(const EngineOptions& options,
                                                const std::vector<Job>& jobs) {
  std::vector<RequestOutput> outputs;
  for (const Job& job : jobs) {
    LLM llm(options);
    outputs.push_back(llm.generate({job.prompt}, job.params)[0]);
  }
  return outputs;
}

// The reference is computed once, with an engine for each job.
class Invariants : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    jobs_ = make_jobs();
    reference_ = run_in_fresh_engines(tiny_options(kModel), jobs_);
  }
  static void TearDownTestSuite() {
    jobs_.clear();
    reference_.clear();
  }

  static inline std::vector<Job> jobs_;
  static inline std::vector<RequestOutput> reference_;
};

TEST_F(Invariants, AloneEqualsBatched) {
  LLM llm(tiny_options(kModel));
  expect_all_alike(run_jobs(llm, jobs_), reference_, "batched");
}

TEST_F(Invariants, OrderOfRequestsDoesNotMatter) {
  LLM llm(tiny_options(kModel));
  std::vector<Job> reversed(jobs_.rbegin(), jobs_.rend());
  std::vector<RequestOutput> outputs = run_jobs(llm, reversed);
  std::reverse(outputs.begin(), outputs.end());
  expect_all_alike(outputs, reference_, "reversed");
}

TEST_F(Invariants, SecondRequestEqualsFreshEngine) {
  LLM llm(tiny_options(kModel));
  run_jobs(llm, {{random_tokens(333, 99), sampled(50, 99)}});
  std::vector<RequestOutput> outputs;
  for (const Job& job : jobs_) outputs.push_back(llm.generate({job.prompt}, job.params)[0]);
  expect_all_same(outputs, reference_, "second request");
}

TEST_F(Invariants, PrefixHitEqualsCold) {
  LLM llm(tiny_options(kModel));
  run_jobs(llm, jobs_);
  const std::vector<RequestOutput> warm = run_jobs(llm, jobs_);
  EXPECT_EQ(warm.back().num_cached_tokens, 192) << "200 tokens are 12 full blocks and 8 tokens";
  expect_all_alike(warm, reference_, "prefix hit");
}

TEST_F(Invariants, BlockSizeDoesNotMatter) {
  for (const int32_t block_size : {32, 64, 256}) {
    EngineOptions options = tiny_options(kModel);
    options.kv.block_size = block_size;
    LLM llm(options);
    expect_all_alike(run_jobs(llm, jobs_), reference_, "block_size " + std::to_string(block_size));
  }
}

TEST_F(Invariants, ChunkSizeDoesNotMatter) {
  for (const int32_t chunk : {1, 7, 64, 512}) {
    EngineOptions options = tiny_options(kModel);
    options.max_num_batched_tokens = 512;
    options.prefill_chunk_tokens = chunk;
    LLM llm(options);
    expect_all_alike(run_jobs(llm, jobs_), reference_, "chunk " + std::to_string(chunk));
  }
}

TEST_F(Invariants, NumberOfThreadsDoesNotMatter) {
  for (const int32_t threads : {1, 3}) {
    EngineOptions options = tiny_options(kModel);
    options.num_threads = threads;
    LLM llm(options);
    expect_all_same(run_jobs(llm, jobs_), reference_, "threads " + std::to_string(threads));
  }
}

TEST_F(Invariants, PreemptionLosesNothing) {
  EngineOptions options = tiny_options(kModel);
  options.enable_prefix_caching = false;  // so that preempted KV is really computed again
  const size_t block_bytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // layers, K and V, heads, ...
  options.kv.cache_bytes = 20 * block_bytes;  // the longest job alone needs 15 blocks
  options.max_model_len = 256;
  LLM llm(options);
  expect_all_alike(run_jobs(llm, jobs_), reference_, "preempted");
  EXPECT_GT(llm.stats().num_preemptions, 0) << "the test did not preempt anything";
}

// Between two attentions a pass is processed in tiles of rows (2048 on a CPU, 8192 on a GPU). Here
// it has three, the last one short, with KV on the device and in host memory.
TEST(RowTiles, APassOfManyTilesEqualsOneOfFewRows) {
  EngineOptions options;
  options.model = (testing::source_dir() / "models/needle").string();
  options.device = testing::test_device_spec();
  const int64_t num_rows = testing::testing_cpu() ? 4500 : 17000;
  options.max_model_len = num_rows + 64;
  options.kv.offload = KvOffload::kOff;
  options.max_num_seqs = 1;
  options.kv.block_size = 64;
  options.prefill_chunk_tokens = 1024;
  const std::vector<Job> jobs = {{random_tokens(num_rows, 1), sampled(8, 1)}};
  const std::vector<RequestOutput> reference = testing::run_engine(options, jobs);
  options.prefill_chunk_tokens.reset();
  options.max_num_batched_tokens = num_rows;
  expect_all_alike(testing::run_engine(options, jobs), reference, "resident");
  options.max_num_batched_tokens.reset();
  options.kv.offload = KvOffload::kLayerwise;
  options.kv.host_bytes = size_t{256} << 20;
  expect_all_alike(testing::run_engine(options, jobs), reference, "layerwise");
}

TEST_F(Invariants, ScheduleOfStreamsDoesNotMatter) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: offload_test delays a GPU's streams";
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    auto device = testing::make_hooked_device("cpu", {.num_threads = 2}, {.schedule_seed = seed});
    LlmEngine engine(tiny_options(kModel),
                     {.device = std::move(device), .policies = make_policies("full")});
    for (const Job& job : jobs_) engine.add_request(job.prompt, job.params);
    std::vector<RequestOutput> outputs(jobs_.size());
    while (engine.has_unfinished()) {
      for (RequestOutput& output : engine.step()) {
        outputs[static_cast<size_t>(output.request_id)] = output;
      }
    }
    expect_all_same(outputs, reference_, "schedule seed " + std::to_string(seed));
  }
}

TEST(InvariantsOfAllFamilies, BatchedChunkedAndAloneAgree) {
  for (const std::string& model : testing::tiny_model_names()) {
    const std::vector<Job> jobs{{random_tokens(33, 1), sampled(8, 1)},
                                {random_tokens(70, 2), sampled(8, 2)}};
    EngineOptions options = tiny_options(model);
    options.max_model_len.reset();
    const std::vector<RequestOutput> alone = run_in_fresh_engines(options, jobs);
    options.prefill_chunk_tokens = 5;
    LLM llm(options);
    expect_all_alike(run_jobs(llm, jobs), alone, model, testing::near_tie_nats(model));
  }
}

// Logits of every position, not only of sampled ones.
TEST(InvariantsOfLogits, PassBoundariesDoNotMatter) {
  EngineOptions options = tiny_options(kModel);
  const std::vector<int32_t> tokens = random_tokens(150, 5);
  LLM whole([&] {
    options.max_num_seqs = 256;  // trace runs max_num_seqs rows at once
    return options;
  }());
  options.max_num_seqs = 7;
  LLM pieces(options);
  const std::vector<float> a = whole.trace(tokens, {}).logits.data;
  const std::vector<float> b = pieces.trace(tokens, {}).logits.data;
  ASSERT_EQ(a.size(), b.size());
  if (testing::testing_cpu()) {
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  } else {
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.1f) << "logit " << i;
  }
}

TEST(Memory, AStepAllocatesNothing) {
  LlmEngine engine(tiny_options(kModel),
                   {.device = testing::make_test_device(), .policies = make_policies("full")});
  engine.add_request(random_tokens(100, 1), sampled(60, 1));
  engine.add_request(random_tokens(20, 2), sampled(60, 2));
  const int64_t before = engine.device().num_allocations();
  while (engine.has_unfinished()) engine.step();
  EXPECT_EQ(engine.device().num_allocations(), before);
}

TEST(Memory, WhatIsTakenIsWhatWasPlanned) {
  const EngineOptions options = tiny_options(kModel);
  LlmEngine engine(options,
                   {.device = testing::make_test_device(), .policies = make_policies("full")});
  EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
            engine.plan().memory.device_used_bytes());
}

// The parameter: with graphs (also where the plan has none) or without.
class Leaks : public ::testing::TestWithParam<bool> {};

TEST_P(Leaks, ThousandsOfShortRequestsWithCancellationLeaveNothing) {
  EngineOptions options = tiny_options(kModel);
  options.enforce_eager = !GetParam();
  LlmEngine engine(options,
                   {.device = testing::make_test_device(),
                    .policies = make_policies("full"),
                    .adjust_plan = GetParam() ? testing::forced_graphs(options) : nullptr});
  const size_t bytes_before = engine.device().allocated_bytes(MemoryKind::kDevice);
  uint64_t state = 12345;
  const auto draw = [&state](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  };
  int64_t num_added = 0, num_finished = 0;
  constexpr int64_t kNumRequests = kSanitized ? 2'000 : 10'000;
  while (num_added < kNumRequests || engine.has_unfinished()) {
    while (num_added < kNumRequests && draw(4) != 0) {
      const auto length = static_cast<int64_t>(1 + draw(40));
      const SequenceId id = engine.add_request(random_tokens(length, draw(50)),
                                               sampled(1 + static_cast<int32_t>(draw(6)), 1));
      ++num_added;
      if (draw(5) == 0) {
        engine.cancel_request(
            SequenceId(static_cast<int64_t>(draw(static_cast<uint64_t>(id.value) + 1))));
      }
    }
    for (const RequestOutput& output : engine.step()) num_finished += output.finished() ? 1 : 0;
  }
  EXPECT_EQ(num_finished, kNumRequests);
  EXPECT_EQ(engine.stats().num_graph_launches > 0, GetParam());
  EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
  EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice), bytes_before);
  engine.blocks().check_invariants({});

  // The engine still gives the answers of a new one.
  const Job job{random_tokens(60, 77), sampled(20, 77)};
  engine.add_request(job.prompt, job.params);
  RequestOutput last;
  while (engine.has_unfinished()) {
    for (RequestOutput& output : engine.step()) last = output;
  }
  expect_same_bits(last, run_in_fresh_engines(tiny_options(kModel), {job})[0], "after the storm");
}

INSTANTIATE_TEST_SUITE_P(Steps, Leaks, ::testing::Values(false, true), [](const auto& test) {
  return std::string(test.param ? "graphs" : "eager");
});

}  // namespace
}  // namespace sluice
