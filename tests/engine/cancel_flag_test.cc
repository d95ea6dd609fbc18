// Progress of each prompt, and flags that cancel requests: from within a pass, from other threads,
// and among other requests. A cancelled request leaves no block behind but those that a retry
// finds.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include "engine/scoped_engine.h"
#include "sluice/llm.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::expect_same_bits;
using testing::Job;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;

using Flag = std::shared_ptr<std::atomic<bool>>;
Flag make_flag() { return std::make_shared<std::atomic<bool>>(false); }

constexpr int32_t kChunk = 64;

EngineOptions options_of(const std::string& mode) {
  if (mode == "resident") return testing::in_chunks(testing::scoped_resident(), kChunk, kChunk);
  if (mode == "chunked") {
    return testing::in_chunks(testing::scoped_offloaded(KvOffload::kChunked, 16), kChunk, kChunk);
  }
  EngineOptions options = testing::scoped_offloaded(KvOffload::kLayerwise, 16);
  options.max_num_batched_tokens = 1024;  // both prompts of a test share a pass
  return options;
}

// Every prefill pass is watched, and decode steps are replayed as graphs.
std::unique_ptr<LlmEngine> engine_of(const EngineOptions& options) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = make_device("cpu", {.num_threads = 2}),
                                .adjust_plan = [options](EnginePlan& plan) {
                                  testing::forced_graphs(options)(plan);
                                  plan.passes.min_watched_rows = 1;
                                }});
}

void expect_nothing_held(const LlmEngine& engine) {
  EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
  if (!testing::has_offload(engine)) return;
  EXPECT_EQ(testing::offload_of(engine).tails().num_free(),
            engine.plan().offloaded.sizes.num_tails);
}

class CancelFlags : public ::testing::TestWithParam<const char*> {
 protected:
  // Steps until the request has ended; its outputs joined. Those of others are in `others_`.
  RequestOutput run(LlmEngine& engine, SequenceId id, const PassWatch* watch = nullptr) {
    RequestOutput joined;
    while (!joined.finished()) {
      for (RequestOutput& output : engine.step(watch)) {
        (output.request_id == id.value ? joined : others_).append(std::move(output));
      }
    }
    return joined;
  }

  const EngineOptions options_ = options_of(GetParam());
  const bool in_chunks_ = std::string(GetParam()) != "layerwise";
  const Job long_job_{random_tokens(470, 1), sampled(8, 1)};
  const Job short_job_{random_tokens(40, 2), sampled(8, 2)};
  RequestOutput others_;
};

TEST_P(CancelFlags, ProgressIsMonotoneAndEndsAtTheTotal) {
  const auto engine = engine_of(options_);
  std::map<int64_t, std::vector<int64_t>> done;
  const auto note = [&](int64_t id, int64_t num_done) {
    EXPECT_GE(num_done, done[id].empty() ? 0 : done[id].back());
    done[id].push_back(num_done);
  };
  const PassWatch watch{.on_progress = {},
                        .on_prompt =
                            [&](const PromptProgress& progress) {
                              EXPECT_EQ(progress.num_prompt_tokens,
                                        progress.request_id == 0 ? 470 : 40);
                              note(progress.request_id, progress.num_done);
                            },
                        .should_cancel = {}};
  for (Job job : {long_job_, short_job_}) {
    job.params.output_kind = OutputKind::kDelta;
    engine->add_request(job.prompt, job.params);
  }
  while (engine->has_unfinished()) {
    for (const RequestOutput& output : engine->step(&watch)) {
      note(output.request_id, output.num_prompt_tokens_done);
      if (!output.token_ids.empty()) {
        EXPECT_EQ(output.num_prompt_tokens_done, output.request_id == 0 ? 470 : 40);
      }
    }
  }
  const auto has = [&](int64_t num_done) { return std::ranges::count(done[0], num_done) > 0; };
  if (in_chunks_) {
    // 24 rows are left in the pass of the short prompt, of which offloaded KV takes 16.
    for (int64_t span = 1; span < 6; ++span) {
      EXPECT_TRUE(has(16 + span * kChunk) || has(24 + span * kChunk)) << "after each span";
    }
  } else {
    EXPECT_TRUE(has(470 / 2) || has(470 / 2 - 1)) << "after the first of two layers";
  }
}

// The retry takes what the cancelled request had sealed, and has the bits of a cold run.
TEST_P(CancelFlags, EndAPassAndLeaveWhatARetryNeeds) {
  const RequestOutput cold = testing::run_engine(options_, {long_job_})[0];
  const auto engine = engine_of(options_);
  const Flag flag = make_flag();
  // The third of four chunks, or the first layer: no flag is read in the last two parts.
  const int64_t enough = in_chunks_ ? 200 : 1;
  int num_after = 0;  // calls after the flag was set
  const PassWatch watch{.on_progress = {},
                        .on_prompt =
                            [&](const PromptProgress& progress) {
                              num_after += *flag ? 1 : 0;
                              if (progress.num_done >= enough) *flag = true;
                            },
                        .should_cancel = {}};
  const SequenceId id = engine->add_request(long_job_.prompt, long_job_.params, flag);
  const RequestOutput cancelled = run(*engine, id, &watch);
  EXPECT_EQ(cancelled.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(cancelled.token_ids.empty());
  EXPECT_GE(cancelled.num_prompt_tokens_done, enough);
  EXPECT_EQ(num_after, 0) << "the pass went on";
  EXPECT_FALSE(engine->has_unfinished());
  expect_nothing_held(*engine);
  const int64_t num_sealed = engine->stats().num_prompt_tokens;
  EXPECT_EQ(num_sealed, in_chunks_ ? 192 : 0);

  const RequestOutput retry = run_jobs(*engine, {long_job_})[0];
  EXPECT_EQ(retry.num_cached_tokens, num_sealed);
  expect_same_bits(retry, cold, "retry");
}

TEST_P(CancelFlags, AreSetByOtherThreads) {
  const auto engine = engine_of(options_);
  for (int round = 0; round < 10; ++round) {
    const Flag flag = make_flag();
    std::atomic<int> num_heard = 0;
    // Each pass has three calls; the engine waits for the client in one of them.
    const PassWatch watch{.on_progress = {},
                          .on_prompt =
                              [&, round](const PromptProgress&) {
                                if (num_heard++ != round % 3) return;
                                while (!*flag) std::this_thread::yield();
                              },
                          .should_cancel = {}};
    std::thread client([&, round] {
      while (num_heard <= round % 3) std::this_thread::yield();
      *flag = true;
    });
    Job job{random_tokens(400, 50 + static_cast<uint64_t>(round)), sampled(100, 1)};
    EXPECT_EQ(run(*engine, engine->add_request(job.prompt, job.params, flag), &watch).finish_reason,
              FinishReason::kCancelled);
    client.join();
    expect_nothing_held(*engine);
  }
  const std::vector<RequestOutput> cold = testing::run_engine(options_, {long_job_, short_job_});
  expect_all_same(run_jobs(*engine, {long_job_, short_job_}), cold, "afterwards");
}

TEST_P(CancelFlags, EndRequestsThatWaitOrDecode) {
  const auto engine = engine_of(options_);
  const Flag of_decoding = make_flag(), of_waiting = make_flag();
  const SequenceId decoding = engine->add_request(short_job_.prompt, sampled(100, 1), of_decoding);
  for (int i = 0; i < 4; ++i) engine->step();
  const SequenceId waiting = engine->add_request(long_job_.prompt, long_job_.params, of_waiting);
  *of_decoding = *of_waiting = true;
  std::vector<RequestOutput> outputs = engine->step();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].request_id, decoding.value);
  EXPECT_EQ(outputs[0].token_ids.size(), 4u);
  EXPECT_EQ(outputs[1].request_id, waiting.value);
  EXPECT_FALSE(engine->has_unfinished());
  expect_nothing_held(*engine);
}

INSTANTIATE_TEST_SUITE_P(Modes, CancelFlags, ::testing::Values("resident", "chunked", "layerwise"),
                         [](const auto& mode) { return std::string(mode.param); });

// ---- Requests that share a pass ---------------------------------------------------------------

class SharedPass : public ::testing::Test {
 protected:
  // Cancels one of two requests in the middle of their only prefill pass. Returns the other's
  // output and the number of prefill passes that ran to their end.
  std::pair<RequestOutput, int64_t> cancel_in_pass(size_t cancelled) {
    const auto engine = engine_of(options_);
    const Flag flag = make_flag();
    std::vector<int64_t> ids;
    for (size_t i = 0; i < 2; ++i) {
      const CancelFlag own = i == cancelled ? flag : nullptr;
      ids.push_back(engine->add_request(jobs_[i].prompt, jobs_[i].params, own).value);
    }
    const PassWatch watch{.on_progress = [&](int64_t num_rows) { *flag = *flag || num_rows > 0; },
                          .on_prompt = {},
                          .should_cancel = {}};
    std::map<int64_t, RequestOutput> outputs;
    while (engine->has_unfinished()) {
      for (RequestOutput& output : engine->step(&watch)) {
        outputs[output.request_id].append(std::move(output));
      }
    }
    EXPECT_EQ(outputs[ids[cancelled]].finish_reason, FinishReason::kCancelled);
    expect_nothing_held(*engine);
    return {outputs[ids[1 - cancelled]], engine->observations().prefill.num_tokens};
  }

  const EngineOptions options_ = options_of("layerwise");
  const std::vector<Job> jobs_{{random_tokens(300, 1), sampled(5, 1)},
                               {random_tokens(60, 2), sampled(5, 2)}};
};

TEST_F(SharedPass, ASmallRequestDoesNotEndIt) {
  const auto [other, num_tokens] = cancel_in_pass(1);
  EXPECT_EQ(num_tokens, 360) << "one pass, to its end";
  expect_same_bits(other, testing::run_engine(options_, {jobs_[0]})[0], "the large one");
}

TEST_F(SharedPass, ALargeRequestEndsItAndTheOtherIsComputedAgain) {
  const auto [other, num_tokens] = cancel_in_pass(0);
  EXPECT_EQ(num_tokens, 360 + 60);
  expect_same_bits(other, testing::run_engine(options_, {jobs_[1]})[0], "the small one");
}

// ---- The public call --------------------------------------------------------------------------

TEST(StepOptionsTest, ProgressIsReportedWithinAPassAndMayThrow) {
  EngineOptions options = options_of("layerwise");
  const Job job{random_tokens(400, 5), sampled(6, 5)};
  const RequestOutput cold = testing::run_engine(options, {job})[0];
  LLM llm(options);
  const int64_t id = llm.add_request(job.prompt, job.params);
  StepOptions failing;
  failing.on_progress = [](const PromptProgress&) { throw std::runtime_error("on_progress"); };
  EXPECT_THROW(llm.step(failing), std::runtime_error);
  EXPECT_EQ(llm.stats().num_steps, 0) << "the pass was given up";
  int num_within = 0;
  StepOptions watching;
  watching.on_progress = [&](const PromptProgress& progress) {
    EXPECT_EQ(progress.request_id, id);
    num_within += progress.num_done > 0 && progress.num_done < 400 ? 1 : 0;
  };
  RequestOutput output;
  while (llm.has_unfinished()) {
    for (RequestOutput& part : llm.step(watching)) output.append(std::move(part));
  }
  EXPECT_GE(num_within, 2) << "two layers in one pass";
  expect_same_bits(output, cold, "after a callback that threw");
}

TEST(StepOptionsTest, AFlagEndsARequestOfTheLibrary) {
  LLM llm(options_of("chunked"));
  const Flag flag = make_flag();
  SamplingParams params = sampled(50, 1);
  params.output_kind = OutputKind::kDelta;
  llm.add_request(random_tokens(200, 5), params, flag);
  RequestOutput output;
  for (int num_steps = 0; llm.has_unfinished(); ++num_steps) {
    if (num_steps == 2) *flag = true;
    for (RequestOutput& part : llm.step()) output.append(std::move(part));
  }
  EXPECT_EQ(output.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(output.num_prompt_tokens_done, 2 * kChunk) << "two spans";
}

}  // namespace
}  // namespace sluice
