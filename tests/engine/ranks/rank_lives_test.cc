// Lives of engines with several ranks: one after the other, at once, with requests left when they
// end, and with requests that are cancelled on the way.
#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "engine/ranks/failing_link.h"
#include "io/expect_error.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;

class RankLives : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: ranks of a GPU are in ranks_test";
  }
};

// Prompts are computed in spans of 64 tokens, but for layer-wise prefill, which takes them whole.
EngineOptions rank_options(int32_t num_ranks, KvOffload mode = KvOffload::kOff) {
  EngineOptions options = testing::tiny_options("llama-group2-linear");
  if (mode != KvOffload::kOff) options = testing::with_offload(options, mode);
  options.tensor_parallel_size = num_ranks;
  if (mode != KvOffload::kLayerwise) {
    options.prefill_chunk_tokens = options.max_num_batched_tokens = 64;
  }
  return options;
}

std::unique_ptr<LlmEngine> make_engine(const EngineOptions& options) {
  return std::make_unique<LlmEngine>(options,
                                     LlmEngine::Parts{.device = testing::make_test_device()});
}

std::vector<Job> some_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {5, 70, 150, 220}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  return jobs;
}

// Nothing of an engine is left for the next one, whatever number of ranks it had.
TEST_F(RankLives, OneAfterTheOther) {
  const std::vector<Job> jobs = some_jobs();
  for (const int32_t num_ranks : {2, 4}) {
    const auto expected = run_engine(rank_options(num_ranks), jobs);
    for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
      expect_all_same(run_engine(rank_options(num_ranks, mode), jobs), expected,
                      std::to_string(num_ranks) + " ranks");
    }
  }
}

// Each has ranks, memory and a group of its own; the last one has a single rank.
TEST_F(RankLives, SeveralAtOnce) {
  const std::vector<Job> jobs = some_jobs();
  const std::vector<EngineOptions> options = {
      rank_options(2), rank_options(4), rank_options(2, KvOffload::kChunked), rank_options(1)};
  std::vector<std::vector<RequestOutput>> expected;
  for (const EngineOptions& one : options) expected.push_back(run_engine(one, jobs));
  std::vector<std::vector<RequestOutput>> outputs(options.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < options.size(); ++i) {
    threads.emplace_back([&, i] { outputs[i] = run_engine(options[i], jobs); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < options.size(); ++i) {
    expect_all_same(outputs[i], expected[i], "engine " + std::to_string(i));
  }
}

// Two engines of one thread, whose steps come in turn.
TEST_F(RankLives, TwoInTurn) {
  const std::vector<Job> jobs = some_jobs();
  const auto expected = run_engine(rank_options(2), jobs);
  const auto first = make_engine(rank_options(2));
  const auto second = make_engine(rank_options(2, KvOffload::kChunked));
  std::vector<std::vector<RequestOutput>> finished(2);
  for (const Job& job : jobs) {
    first->add_request(job.prompt, job.params);
    second->add_request(job.prompt, job.params);
  }
  while (finished[0].size() + finished[1].size() < 2 * jobs.size()) {
    testing::run_steps(*first, 1, finished[0]);
    testing::run_steps(*second, 1, finished[1]);
  }
  for (auto& outputs : finished) {
    std::ranges::sort(outputs, {}, [](const RequestOutput& o) { return o.num_prompt_tokens_done; });
    expect_all_same(outputs, expected, "in turn");
  }
}

// Before the first step, within a prompt, in decode, and with drafts: the end waits for no request,
// and the next engine is not disturbed.
TEST_F(RankLives, EndsWithRequestsLeft) {
  const std::vector<Job> jobs = some_jobs();
  const auto expected = run_engine(rank_options(2), jobs);
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    for (const int num_steps : {0, 1, 3, 12}) {
      EngineOptions options = rank_options(num_steps % 2 == 0 ? 2 : 4, mode);
      if (num_steps == 12) options.speculative.method = SpeculativeMethod::kNgram;
      const auto engine = make_engine(options);
      for (const Job& job : jobs) engine->add_request(job.prompt, job.params);
      std::vector<RequestOutput> finished;
      testing::run_steps(*engine, num_steps, finished);
      EXPECT_TRUE(engine->has_unfinished());
    }
  }
  expect_all_same(run_engine(rank_options(2), jobs), expected, "after");
}

// Cancelled in the queue, within the prompt and in decode: blocks are free on every rank, which the
// others show by their bits, in memory for few requests.
TEST_F(RankLives, CancelledRequestsDisturbNoOther) {
  const std::vector<Job> jobs = some_jobs();
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    const auto expected = run_engine(rank_options(2), jobs);
    const auto engine = make_engine(rank_options(2, mode));
    for (int round = 0; round < 6; ++round) {
      const auto seed = static_cast<uint64_t>(100 + round);
      const SequenceId cancelled =
          engine->add_request(random_tokens(200, seed), sampled(100, round));
      for (int step = 0; step < 2 * round; ++step) engine->step();
      if (round % 2 == 0) {
        engine->cancel_request(cancelled);
      } else {
        engine->drop_request(cancelled);
      }
      while (engine->has_unfinished()) engine->step();
      EXPECT_EQ(engine->blocks().num_used_blocks(), 0);
      expect_all_same(run_jobs(*engine, jobs), expected, "round " + std::to_string(round));
    }
  }
}

// Also on GPUs: ranks leave a pass together, or wait for each other.
class RankCancels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::can_have(2)) GTEST_SKIP() << "skipped: no second GPU";
  }

  // Every prefill pass is watched.
  static std::unique_ptr<LlmEngine> make(const EngineOptions& options) {
    return std::make_unique<LlmEngine>(
        options,
        LlmEngine::Parts{.device = testing::make_test_device(),
                         .adjust_plan = [](auto& plan) { plan.passes.min_watched_rows = 1; }});
  }

  // Runs a request that is cancelled when a pass of its prompt has told progress this many times,
  // over all its passes. False if it ended before.
  static bool cancels_after(LlmEngine& engine, int64_t num_calls) {
    const auto flag = std::make_shared<std::atomic<bool>>(false);
    int64_t num_left = num_calls;
    int64_t num_after = 0;  // calls after the flag was set
    const PassWatch watch{.on_progress =
                              [&](int64_t) {
                                num_after += *flag ? 1 : 0;
                                if (--num_left == 0) *flag = true;
                              },
                          .should_cancel = {}};
    engine.add_request(random_tokens(200, static_cast<uint64_t>(num_calls)), sampled(4, 1), flag);
    FinishReason reason = FinishReason::kNone;
    while (engine.has_unfinished()) {
      for (const RequestOutput& output : engine.step(&watch)) reason = output.finish_reason;
    }
    EXPECT_EQ(num_after, 0) << "the pass went on";
    EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
    EXPECT_EQ(reason == FinishReason::kCancelled, flag->load());
    return flag->load();
  }
};

TEST_F(RankCancels, AtEachPartOfAPass) {
  const std::vector<Job> jobs = some_jobs();
  for (const int32_t num_ranks : {2, 4}) {
    if (!testing::can_have(num_ranks)) continue;
    for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
      const auto expected = run_engine(rank_options(num_ranks, mode), jobs);
      const auto engine = make(rank_options(num_ranks, mode));
      int64_t num_calls = 1;
      while (cancels_after(*engine, num_calls)) {
        expect_all_same(run_jobs(*engine, jobs), expected,
                        fmt::format("{} ranks, after {} calls", num_ranks, num_calls));
        ++num_calls;
      }
      EXPECT_GT(num_calls, 2) << "parts of the passes";
    }
  }
}

// The first rank leaves its pass alone: no other waits for it, and no further pass begins.
TEST_F(RankCancels, ACallbackThatThrowsEndsAll) {
  const auto engine = make(rank_options(2));
  const PassWatch watch{.on_progress = [](int64_t) { throw std::runtime_error("no terminal"); },
                        .should_cancel = {}};
  engine->add_request(random_tokens(200, 1), sampled(4, 1));
  EXPECT_THROW(engine->step(&watch), std::runtime_error);
  expect_error_with(ErrorCode::kDevice, [&] { engine->step(); }, {"rank 0 of 2", "no terminal"});
}

// In the middle of passes: the first rank's step names it, and no thread stays.
TEST_F(RankLives, AFailureInAPassEndsAll) {
  for (const int32_t failing : {1, 3}) {
    std::atomic<bool> fails = false;
    LlmEngine::Parts parts{.device = testing::make_test_device()};
    parts.make_device = [&](int32_t rank) {
      if (rank != failing) return testing::make_test_device();
      return make_device_with_hook("cpu", {.num_threads = 1},
                                   std::make_unique<testing::FailingLink>(fails));
    };
    LlmEngine engine(rank_options(4), std::move(parts));
    engine.add_request(random_tokens(60, 1), sampled(200, 1));
    for (int i = 0; i < 5; ++i) engine.step();
    fails = true;
    expect_error_with(ErrorCode::kDevice,
                      [&] {
                        for (int i = 0; i < 100; ++i) engine.step();
                      },
                      {"rank " + std::to_string(failing) + " of 4", "the link is gone"});
  }
}

}  // namespace
}  // namespace sluice
