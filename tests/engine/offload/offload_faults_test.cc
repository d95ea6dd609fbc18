// Faults while KV is offloaded: a failing stream, a full host tier, cancellation. Each must give a
// clear error, leave other requests running and leak nothing, and the engine can always be
// destroyed.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "support/device_hooks.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/stream_spy.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::offload_of;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::StreamSpy;

constexpr const char* kModel = "qwen3-group2-tied";
constexpr int32_t kBlockTokens = 16;
constexpr size_t kBlockBytes = 2 * 2 * 2 * kBlockTokens * 32 * sizeof(BFloat16);  // all layers

EngineOptions offloaded(const std::string& mode, int64_t num_host_blocks) {
  EngineOptions options = testing::tiny_options(kModel);
  options.kv.offload = testing::kv_offload_named(mode);
  options.max_num_seqs = 4;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  options.kv.host_bytes = static_cast<int64_t>(kBlockBytes) * num_host_blocks;
  if (mode == "chunked") {
    options.prefill_chunk_tokens = 64;
    options.max_num_batched_tokens = 64;
  }
  return options;
}

LlmEngine::Parts plain_parts() {
  return {.device = testing::make_test_device({.num_threads = 2}),
          .policies = make_policies("full")};
}

void expect_nothing_held(const LlmEngine& engine) {
  EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
  EXPECT_EQ(offload_of(engine).tails().num_free(), engine.plan().offloaded.sizes.num_tails);
  EXPECT_TRUE(offload_of(engine).loader().can_load());
}

// ---- A stream that fails ----------------------------------------------------------------------

struct FailingStream {
  const char* stream;
  const char* mode;
  int good_steps;  // before it fails: 0 to 2 prefill, later decode
};

class OffloadFailingStream : public ::testing::TestWithParam<FailingStream> {};

// Runs steps until one throws; the error's text, or "" when all went well.
std::string run_until_error(LlmEngine& engine) {
  try {
    while (engine.has_unfinished()) engine.step();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_P(OffloadFailingStream, IsThrownByStepAndTheEngineCanBeDestroyed) {
  std::map<std::string, Stream*> streams;
  LlmEngine engine(offloaded(GetParam().mode, 64), {.device = std::make_unique<StreamSpy>(streams),
                                                    .policies = make_policies("full")});
  const SequenceId a = engine.add_request(random_tokens(150, 1), sampled(100, 1));
  const SequenceId b = engine.add_request(random_tokens(20, 2), sampled(100, 2));
  for (int i = 0; i < GetParam().good_steps; ++i) engine.step();
  ASSERT_EQ(streams.count(GetParam().stream), 1u);
  testing::enqueue_failure(*streams.at(GetParam().stream), "the cable was pulled");

  for (int attempt = 0; attempt < 3; ++attempt) {  // it stays failed and throws every time
    const std::string text = run_until_error(engine);
    EXPECT_NE(text.find(testing::kFailingOp), std::string::npos) << text;
    EXPECT_NE(text.find("the cable was pulled"), std::string::npos) << text;
    EXPECT_NE(text.find(GetParam().stream), std::string::npos) << text;
  }
  engine.cancel_request(a);
  engine.cancel_request(b);
  const std::vector<RequestOutput> outputs = engine.step();
  ASSERT_EQ(outputs.size(), 2u);
  for (const RequestOutput& output : outputs) {
    EXPECT_EQ(output.finish_reason, FinishReason::kCancelled);
  }
  EXPECT_FALSE(engine.has_unfinished());
  EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
  EXPECT_EQ(offload_of(engine).tails().num_free(), engine.plan().offloaded.sizes.num_tails);
}

std::vector<FailingStream> failing_streams() {
  std::vector<FailingStream> cases;
  for (const char* mode : {"chunked", "layerwise"}) {
    for (const char* stream : {"slot 0", "slot 1", "write-back", "compute"}) {
      for (const int good_steps : {0, 1, 2, 10}) cases.push_back({stream, mode, good_steps});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Streams, OffloadFailingStream, ::testing::ValuesIn(failing_streams()),
                         [](const auto& param_info) {
                           std::string name = param_info.param.stream;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name + "_" + param_info.param.mode + "_after_" +
                                  std::to_string(param_info.param.good_steps);
                         });

// ---- No room ----------------------------------------------------------------------------------

// Each request fits alone, but not all together: the newest is preempted during its decode, while
// the older ones get a token in every step.
TEST(OffloadFaults, AFullHostTierPreemptsTheNewestAndTheOthersGoOn) {
  EngineOptions options = offloaded("chunked", 10);
  options.max_model_len = 128;
  LlmEngine engine(options, plain_parts());
  const std::vector<Job> jobs{{random_tokens(30, 1), sampled(60, 1)},
                              {random_tokens(30, 2), sampled(60, 2)},
                              {random_tokens(30, 3), sampled(60, 3)}};
  std::vector<RequestOutput> outputs(jobs.size());
  for (Job job : jobs) {
    job.params.output_kind = OutputKind::kDelta;  // shows who got a token
    engine.add_request(job.prompt, job.params);
  }
  int64_t last_preemptions = 0;
  while (engine.has_unfinished()) {
    const bool first_runs = !outputs[0].finished();
    const std::vector<RequestOutput> changed = engine.step();
    const int64_t preemptions = engine.stats().num_preemptions;
    if (preemptions > last_preemptions && first_runs) {
      EXPECT_FALSE(changed.empty());
      EXPECT_EQ(changed.front().request_id, 0) << "the oldest never gives way";
    }
    last_preemptions = preemptions;
    for (const RequestOutput& output : changed) {
      outputs[static_cast<size_t>(output.request_id)].append(output);
    }
  }
  EXPECT_GT(last_preemptions, 0);
  expect_nothing_held(engine);
  expect_all_alike(outputs, testing::run_engine(testing::tiny_options(kModel), jobs), "preempted");
}

TEST(OffloadFaults, WhatCanNeverFitIsRefusedBeforeAnyWork) {
  for (const char* mode : {"chunked", "layerwise"}) {
    LlmEngine engine(offloaded(mode, 8), plain_parts());
    ASSERT_EQ(engine.plan().max_model_len, 128);
    const Job small{random_tokens(20, 1), sampled(10, 1)};
    engine.add_request(small.prompt, small.params);
    const TransferCounters before = offload_of(engine).counters();
    try {
      engine.add_request(random_tokens(100, 2), sampled(29, 1));
      FAIL() << "129 tokens in 8 blocks of 16";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit);
      EXPECT_NE(std::string(error.what()).find("128"), std::string::npos) << error.what();
    }
    EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
    EXPECT_EQ(offload_of(engine).counters().num_copies, before.num_copies);
    RequestOutput output;
    while (engine.has_unfinished()) {
      for (RequestOutput& changed : engine.step()) output = std::move(changed);
    }
    expect_all_alike({output}, testing::run_engine(testing::tiny_options(kModel), {small}), mode);
    // What just fits is done.
    engine.add_request(random_tokens(100, 2), sampled(28, 1));
    while (engine.has_unfinished()) engine.step();
    expect_nothing_held(engine);
  }
}

// A request that waits for blocks is admitted when another one ends.
TEST(OffloadFaults, APromptThatDoesNotFitYetWaits) {
  LlmEngine engine(offloaded("layerwise", 8), plain_parts());
  const std::vector<Job> jobs{{random_tokens(90, 1), sampled(20, 1)},
                              {random_tokens(100, 2), sampled(20, 2)}};
  expect_all_alike(run_jobs(engine, jobs), testing::run_engine(testing::tiny_options(kModel), jobs),
                   "waited");
  expect_nothing_held(engine);
}

// ---- Cancellation -----------------------------------------------------------------------------

// Cancels the long request after every possible number of steps: before its first chunk, between
// any two chunks whose history flows through the ring, and anywhere in its decode. A step ends when
// compute has consumed its loads, so there is no finer point to cancel at.
TEST(OffloadFaults, CancellingLeavesTheOtherUnharmed) {
  const Job other{random_tokens(40, 2), sampled(24, 2)};
  const auto reference = testing::run_engine(testing::tiny_options(kModel), {other});
  for (const char* mode : {"chunked", "layerwise"}) {
    LlmEngine engine(offloaded(mode, 40), plain_parts());
    for (int steps = 0; steps < 24; ++steps) {
      const SequenceId cancelled = engine.add_request(random_tokens(200, 1), sampled(60, 1));
      const SequenceId kept = engine.add_request(other.prompt, other.params);
      RequestOutput output;
      for (int i = 0; engine.has_unfinished(); ++i) {
        if (i == steps) engine.cancel_request(cancelled);
        for (RequestOutput& changed : engine.step()) {
          if (changed.request_id == kept.value) output = std::move(changed);
        }
      }
      expect_all_alike({output}, reference,
                       std::string(mode) + ", cancelled after " + std::to_string(steps));
      expect_nothing_held(engine);
    }
  }
}

TEST(OffloadFaults, LoadingSaysHowMuchIsPinnedAndThenReadsWeights) {
  using Stage = LoadProgress::Stage;
  std::vector<LoadProgress> heard;
  const EngineOptions options = offloaded("chunked", 100);
  const LlmEngine engine(options, plain_parts(),
                         [&](const LoadProgress& progress) { heard.push_back(progress); });
  const auto last_pinning = std::find_if(heard.rbegin(), heard.rend(), [](const auto& progress) {
    return progress.stage == Stage::kPinning;
  });
  ASSERT_NE(last_pinning, heard.rend());
  EXPECT_EQ(last_pinning->share, 1);
  EXPECT_EQ(last_pinning->total_bytes, options.kv.host_bytes);
  EXPECT_EQ(heard.front().stage, Stage::kTokenizer);
  EXPECT_EQ(heard.at(1).stage, Stage::kTokenizer);
  EXPECT_EQ(heard.at(2).stage, Stage::kPinning);
  EXPECT_EQ(heard.back().stage, Stage::kWeights);
  EXPECT_EQ(heard.back().share, 1);
}

// An interrupt while host memory is pinned, or while weights are read.
TEST(OffloadFaults, LoadingCanBeInterruptedAtEveryStage) {
  struct Interrupted {};
  using Stage = LoadProgress::Stage;
  for (const auto stage : {Stage::kTokenizer, Stage::kPinning, Stage::kWeights}) {
    const auto interrupt = [&](const LoadProgress& progress) {
      if (progress.stage == stage) throw Interrupted();
    };
    EXPECT_THROW(LlmEngine(offloaded("chunked", 100), plain_parts(), interrupt), Interrupted);
  }
}

int num_random_requests() {
  const char* number = std::getenv("SLUICE_TEST_REQUESTS");
  return number != nullptr ? std::atoi(number) : 2000;
}

Job random_job(std::mt19937_64& random) {
  const auto prompt_tokens = static_cast<int64_t>(1 + random() % 60);
  const uint64_t prompt_seed = random() % 50;  // few seeds, so that prefixes occur again
  return {random_tokens(prompt_tokens, prompt_seed),
          sampled(static_cast<int32_t>(1 + random() % 20), static_cast<int64_t>(random() % 1000))};
}

// SLUICE_TEST_REQUESTS=10000 runs more of them. The host tier is small, so that preemptions,
// evictions and prefix hits are frequent.
TEST(OffloadFaults, RandomRequestsWithCancellationLeaveTheEngineAsNew) {
  for (const char* mode : {"chunked", "layerwise"}) {
    LlmEngine engine(offloaded(mode, 14), plain_parts());
    std::mt19937_64 random(1);
    std::vector<SequenceId> ids;
    int num_cancelled = 0;
    const int num_requests = num_random_requests() / 2;
    for (int added = 0; added < num_requests || engine.has_unfinished();) {
      if (added < num_requests && random() % 2 == 0) {
        const Job job = random_job(random);
        ids.push_back(engine.add_request(job.prompt, job.params));
        ++added;
      }
      if (!ids.empty() && random() % 8 == 0) {
        engine.cancel_request(ids[ids.size() - 1 - random() % std::min<size_t>(ids.size(), 8)]);
      }
      if (!engine.has_unfinished()) continue;
      for (const RequestOutput& output : engine.step()) {
        num_cancelled += output.finish_reason == FinishReason::kCancelled;
      }
    }
    EXPECT_GT(num_cancelled, num_requests / 20) << mode;
    EXPECT_GT(engine.stats().num_preemptions, 0) << mode;
    expect_nothing_held(engine);

    std::vector<Job> jobs;
    for (int i = 0; i < 6; ++i) jobs.push_back(random_job(random));
    const auto run_alone = [&](LlmEngine& one) {
      std::vector<RequestOutput> outputs;
      for (const Job& job : jobs) outputs.push_back(run_jobs(one, {job})[0]);
      return outputs;
    };
    LlmEngine fresh(offloaded(mode, 14), plain_parts());
    const std::vector<RequestOutput> aged = run_alone(engine);
    expect_all_same(aged, run_alone(fresh), "against a fresh engine");
    expect_all_alike(aged, testing::run_engine(testing::tiny_options(kModel), jobs), "resident");
  }
}

}  // namespace
}  // namespace sluice
