// Watched passes: progress within a pass, and cancellation within a pass, which must leave the
// engine in the state before it.
#include <algorithm>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::has_offload;
using testing::Job;
using testing::offload_of;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;

constexpr const char* kModel = "qwen3-group2-tied";  // 2 layers
constexpr int32_t kBlockTokens = 16;
constexpr size_t kBlockBytes = 2 * 2 * 2 * kBlockTokens * 32 * sizeof(BFloat16);  // all layers

struct Setting {
  const char* name;
  const char* kv_offload;
  const char* policy;
  int64_t num_device_blocks;  // that also stay on the device
  int32_t chunk_tokens;       // of prefill; 0: the whole prompt
};

EngineOptions options_of(const Setting& setting) {
  EngineOptions options = testing::tiny_options(kModel);
  options.kv.offload = testing::kv_offload_named(setting.kv_offload);
  options.sparse.policy = setting.policy;
  options.max_num_seqs = 4;
  options.enable_prefix_caching = false;  // every prompt is computed anew
  if (std::string(setting.kv_offload) != "off") {
    options.kv.num_slots = 2;
    options.kv.slot_blocks = 1;
    options.kv.host_bytes = kBlockBytes * 40;
    options.kv.device_bytes = static_cast<int64_t>(kBlockBytes) * setting.num_device_blocks;
  }
  if (setting.chunk_tokens > 0) {
    options.prefill_chunk_tokens = setting.chunk_tokens;
    options.max_num_batched_tokens = setting.chunk_tokens;
  }
  if (std::string(setting.policy) != "full") {
    options.sparse.page_tokens = 16;
    options.sparse.topk_tokens = 48;
    options.sparse.sink_tokens = 16;
    options.sparse.recent_tokens = 16;
  }
  return options;
}

// An engine whose compute stream starts every op late, so that work is pending when a pass is
// cancelled.
std::unique_ptr<LlmEngine> slow_engine(const EngineOptions& options) {
  LlmEngine::Parts parts{
      .device = testing::make_test_device({.num_threads = 2},
                                          {.slow_streams = "compute", .slow_stream_delay_us = 30})};
  return std::make_unique<LlmEngine>(options, std::move(parts));
}

// Cancels one pass after `num_parts` parts have been reported as done. A pass of this model has 5
// parts (rows in, then attention and a tile of rows for each layer), of which 3 are reported.
class GiveUpAfter {
 public:
  explicit GiveUpAfter(int num_parts) : num_parts_(num_parts) {}

  const PassWatch& watch() const { return watch_; }
  bool has_given_up() const { return has_given_up_; }

 private:
  bool should_cancel() {
    if (has_given_up_ || num_heard_ < num_parts_) return false;
    return has_given_up_ = true;
  }

  int num_parts_;
  int num_heard_ = 0;
  bool has_given_up_ = false;
  const PassWatch watch_{.on_progress = [this](int64_t) { ++num_heard_; },
                         .should_cancel = [this] { return should_cancel(); }};
};
constexpr int kHeardPerPass = 3;

class WatchedPass : public ::testing::TestWithParam<Setting> {
 protected:
  const EngineOptions options_ = options_of(GetParam());
  const Job long_job_{random_tokens(205, 1),
                      sampled(6, 1)};  // ends within a block, so that it has a tail
  const Job short_job_{random_tokens(40, 2), sampled(6, 2)};
  const std::vector<RequestOutput> reference_ =
      testing::run_engine(options_, {long_job_, short_job_});
};

TEST_P(WatchedPass, WatchingChangesNoBit) {
  LlmEngine engine(options_, {.device = testing::make_test_device({.num_threads = 2})});
  std::vector<SequenceId> ids;
  for (const Job& job : {long_job_, short_job_}) {
    ids.push_back(engine.add_request(job.prompt, job.params));
  }
  std::vector<RequestOutput> outputs(2);
  int64_t num_heard = 0;
  const PassWatch watch{.on_progress = [&](int64_t) { ++num_heard; },
                        .should_cancel = [] { return false; }};
  while (engine.has_unfinished()) {
    for (RequestOutput& output : engine.step(&watch)) {
      outputs[output.request_id == ids[0].value ? 0 : 1] = std::move(output);
    }
  }
  EXPECT_GT(num_heard, 0);
  expect_all_same(outputs, reference_, "watched");
}

// The requests of a cancelled pass are computed again.
TEST_P(WatchedPass, GivenUpAndRunAgainHasTheSameBits) {
  const auto engine = slow_engine(options_);
  for (int num_parts = 0; num_parts < kHeardPerPass; ++num_parts) {
    std::vector<SequenceId> ids;
    for (const Job& job : {long_job_, short_job_}) {
      ids.push_back(engine->add_request(job.prompt, job.params));
    }
    const int64_t before = engine->stats().num_prompt_tokens;
    const GiveUpAfter watcher(num_parts);
    std::vector<RequestOutput> outputs(2);
    while (engine->has_unfinished()) {
      for (RequestOutput& output : engine->step(&watcher.watch())) {
        outputs[output.request_id == ids[0].value ? 0 : 1] = std::move(output);
      }
    }
    EXPECT_TRUE(watcher.has_given_up());
    EXPECT_EQ(engine->stats().num_prompt_tokens - before, 245) << "each token counts once";
    expect_all_alike(outputs, reference_, "given up after " + std::to_string(num_parts));
  }
}

// Also between chunks, while the ring holds history, and after the last point at which a pass can
// be cancelled.
TEST_P(WatchedPass, CancelledLeavesTheEngineAsNew) {
  const auto engine = slow_engine(options_);
  for (const int num_parts : {0, 1, 2, 4, 8}) {
    const SequenceId id = engine->add_request(long_job_.prompt, long_job_.params);
    const int64_t generated = engine->stats().num_generated_tokens;
    const GiveUpAfter watcher(num_parts);
    while (!watcher.has_given_up() && engine->stats().num_generated_tokens == generated) {
      engine->step(&watcher.watch());
    }
    EXPECT_TRUE(watcher.has_given_up() || num_parts >= kHeardPerPass);
    engine->cancel_request(id);
    const auto outputs = engine->step();
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_EQ(outputs[0].finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(outputs[0].token_ids.empty(), watcher.has_given_up());
    EXPECT_EQ(engine->blocks().num_used_blocks(), 0);
    if (has_offload(*engine)) {
      EXPECT_EQ(offload_of(*engine).tails().num_free(), engine->plan().offloaded.sizes.num_tails);
      // A pass that was not cancelled has enqueued loads for the next one.
      EXPECT_TRUE(offload_of(*engine).loader().can_load() || !watcher.has_given_up());
    }
    expect_all_alike(run_jobs(*engine, {long_job_, short_job_}), reference_,
                     "after a cancel after " + std::to_string(num_parts));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, WatchedPass,
    ::testing::Values(Setting{"resident", "off", "full", 0, 0},
                      Setting{"layerwise", "layerwise", "full", 0, 0},
                      Setting{"chunked", "chunked", "full", 0, 64},
                      Setting{"layerwise_residents", "layerwise", "full", 6, 0},
                      Setting{"chunked_residents", "chunked", "full", 6, 64},
                      Setting{"layerwise_quest", "layerwise", "full+quest", 6, 0},
                      Setting{"chunked_quest", "chunked", "full+quest", 0, 64}),
    [](const auto& setting) { return std::string(setting.param.name); });

// ---- The public call --------------------------------------------------------------------------

// The tests of WatchedPass set the length from which a pass is watched; here the engine's default
// applies.
constexpr const char* kTooShort = "skipped: on a GPU passes of 400 tokens are not watched";

TEST(WatchedGenerate, ReportsProgressWithinAPass) {
  if (!testing::testing_cpu()) GTEST_SKIP() << kTooShort;
  for (const char* mode : {"off", "layerwise"}) {
    EngineOptions options = testing::tiny_options(kModel);
    options.kv.offload = testing::kv_offload_named(mode);
    options.max_num_batched_tokens = 512;
    options.max_model_len = 512;
    LLM llm(options);
    SamplingParams params;
    params.max_tokens = 1;
    std::vector<int64_t> done;
    GenerateOptions watch;
    watch.on_progress = [&](const Progress& progress) {
      EXPECT_EQ(progress.num_prompt_tokens_total, 400);
      done.push_back(progress.num_prompt_tokens_done);
    };
    llm.generate({random_tokens(400, 5)}, params, watch);
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    EXPECT_EQ(done.back(), 400);
    const auto within = std::count_if(done.begin(), done.end(),
                                      [](int64_t tokens) { return tokens > 0 && tokens < 400; });
    EXPECT_GE(within, 2) << mode << ": 2 layers in one pass";
  }
}

TEST(WatchedGenerate, CancelsWithinAPass) {
  if (!testing::testing_cpu()) GTEST_SKIP() << kTooShort;
  EngineOptions options = testing::tiny_options(kModel);
  options.kv.offload = KvOffload::kLayerwise;
  options.max_num_batched_tokens = 512;
  options.max_model_len = 512;
  LLM llm(options);
  SamplingParams params;
  params.max_tokens = 4;
  const std::vector<Prompt> prompts = {random_tokens(400, 5)};
  int64_t num_done = 0;
  GenerateOptions watch;
  watch.on_progress = [&](const Progress& progress) { num_done = progress.num_prompt_tokens_done; };
  watch.should_cancel = [&] { return num_done > 0; };
  const RequestOutput output = llm.generate(prompts, params, watch).front();
  EXPECT_EQ(output.finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(output.token_ids.empty());
  EXPECT_FALSE(llm.has_unfinished());
  EXPECT_EQ(llm.stats().num_steps, 0) << "the pass was given up";
  EXPECT_EQ(llm.generate(prompts, params).front().token_ids.size(), 4u);
}

TEST(WatchedGenerate, ACancelledTraceIsEmptyAndLeavesTheEngineAsNew) {
  EngineOptions options = testing::tiny_options(kModel);
  options.enable_prefix_caching = false;
  LLM llm(options);
  const std::vector<int32_t> tokens = random_tokens(60, 6);
  const LLM::Trace whole = llm.trace(tokens, {"layer.*.q"});
  int64_t num_done = 0;
  GenerateOptions watch;
  watch.on_progress = [&](const Progress& progress) { num_done = progress.num_prompt_tokens_done; };
  watch.should_cancel = [&] { return num_done > 0; };
  const LLM::Trace cancelled = llm.trace(tokens, {"layer.*.q"}, watch);
  EXPECT_EQ(num_done, 16) << "max_num_seqs rows a pass";
  EXPECT_TRUE(cancelled.logits.data.empty());
  EXPECT_TRUE(cancelled.taps.empty());
  const LLM::Trace again = llm.trace(tokens, {"layer.*.q"});
  EXPECT_EQ(again.logits.data, whole.logits.data);
  EXPECT_EQ(again.taps.size(), whole.taps.size());
}

}  // namespace
}  // namespace sluice
