// Log-probabilities of prompt tokens: against the logits of a trace, the same bits for all sizes of
// passes and tiles and places of KV, whole with preemption, cancellation and the prefix cache.
#include <bit>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_same_bits;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::tiny_options;

constexpr const char* kModel = "qwen3-group2-tied";
constexpr size_t kVocab = 160;

using PromptLogprobs = std::vector<std::vector<TokenLogprob>>;

Job scored(int64_t num_prompt_tokens, int32_t num_top, int64_t seed = 3) {
  Job job{random_tokens(num_prompt_tokens, static_cast<uint64_t>(seed)), sampled(5, seed)};
  job.params.prompt_logprobs = num_top;
  return job;
}

void expect_equal(const PromptLogprobs& a, const PromptLogprobs& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t pos = 0; pos < a.size(); ++pos) {
    ASSERT_EQ(a[pos].size(), b[pos].size()) << what << ", position " << pos;
    for (size_t i = 0; i < a[pos].size(); ++i) {
      if (testing::testing_cpu()) {
        EXPECT_EQ(a[pos][i].token_id, b[pos][i].token_id) << what << ", position " << pos;
        EXPECT_EQ(std::bit_cast<uint32_t>(a[pos][i].logprob),
                  std::bit_cast<uint32_t>(b[pos][i].logprob))
            << what << ", position " << pos;
      } else {  // products of another height round differently
        EXPECT_NEAR(a[pos][i].logprob, b[pos][i].logprob, 0.1f) << what << ", position " << pos;
      }
    }
  }
}

TEST(PromptLogprobs, AreTheLogSoftmaxOfTheTracedLogits) {
  const Job job = scored(90, 20);
  const RequestOutput output = run_engine(tiny_options(kModel), {job})[0];
  LLM llm(tiny_options(kModel));
  const std::vector<float> logits = llm.trace(job.prompt, {}).logits.data;
  ASSERT_EQ(output.prompt_logprobs.size(), 90u);
  EXPECT_TRUE(output.prompt_logprobs[0].empty());
  const double tolerance = testing::testing_cpu() ? 1e-4 : 0.1;
  for (size_t pos = 1; pos < 90; ++pos) {
    const float* row = logits.data() + (pos - 1) * kVocab;
    double sum = 0;
    for (size_t id = 0; id < kVocab; ++id) sum += std::exp(static_cast<double>(row[id]));
    const auto expected = [&](int32_t id) { return static_cast<double>(row[id]) - std::log(sum); };
    const std::vector<TokenLogprob>& entry = output.prompt_logprobs[pos];
    ASSERT_EQ(entry.size(), 21u);
    EXPECT_EQ(entry[0].token_id, job.prompt[pos]);
    for (const TokenLogprob& one : entry) {
      EXPECT_NEAR(static_cast<double>(one.logprob), expected(one.token_id), tolerance) << pos;
    }
    std::vector<float> order(row, row + kVocab);
    std::sort(order.begin(), order.end(), std::greater<>());
    for (size_t i = 1; i < entry.size(); ++i) {
      EXPECT_NEAR(row[entry[i].token_id], order[i - 1], tolerance) << pos;
    }
  }
}

TEST(PromptLogprobs, ChangeNothingElse) {
  Job plain = scored(70, 3);
  plain.params.prompt_logprobs.reset();
  const RequestOutput expected = run_engine(tiny_options(kModel), {plain})[0];
  EXPECT_TRUE(expected.prompt_logprobs.empty());
  expect_same_bits(run_engine(tiny_options(kModel), {scored(70, 3)})[0], expected, "scored");
}

TEST(PromptLogprobs, ChunksTilesAndThePlaceOfKvDoNotMatter) {
  const Job job = scored(150, 4);
  const PromptLogprobs expected = run_engine(tiny_options(kModel), {job})[0].prompt_logprobs;
  for (const int32_t chunk : {1, 7, 64}) {
    EngineOptions options = tiny_options(kModel);
    options.prefill_chunk_tokens = chunk;
    expect_equal(run_engine(options, {job})[0].prompt_logprobs, expected,
                 "chunk " + std::to_string(chunk));
  }
  for (const int32_t rows : {1, 5, 256}) {
    EngineOptions options = tiny_options(kModel);
    options.max_num_seqs = rows;  // rows of a tile
    expect_equal(run_engine(options, {job})[0].prompt_logprobs, expected,
                 "tiles of " + std::to_string(rows));
  }
  for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
    EngineOptions options = tiny_options(kModel);
    options.kv.offload = mode;
    options.kv.host_bytes = 4 << 20;
    options.kv.num_slots = 2;
    options.kv.slot_blocks = 1;
    if (mode == KvOffload::kChunked) options.prefill_chunk_tokens = 32;
    expect_equal(run_engine(options, {job})[0].prompt_logprobs, expected, "offloaded");
  }
}

TEST(PromptLogprobs, AloneEqualBatched) {
  const std::vector<Job> jobs = {scored(33, 0, 1), scored(70, 20, 2), scored(1, 2, 3),
                                 scored(48, 1, 4)};
  std::vector<Job> mixed = jobs;
  for (int64_t i = 0; i < 4; ++i) {
    mixed.insert(mixed.begin() + 2 * i, Job{random_tokens(29, 9), sampled(9, i)});
  }
  EngineOptions options = tiny_options(kModel);
  options.prefill_chunk_tokens = 30;
  const std::vector<RequestOutput> outputs = run_engine(options, mixed);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const RequestOutput alone = run_engine(tiny_options(kModel), {jobs[i]})[0];
    EXPECT_EQ(alone.prompt_logprobs.size(), jobs[i].prompt.size());
    expect_equal(outputs[2 * i + 1].prompt_logprobs, alone.prompt_logprobs, std::to_string(i));
    EXPECT_TRUE(outputs[2 * i].prompt_logprobs.empty());
  }
}

// Every position needs its logits, so nothing is taken from the cache; the blocks go there.
TEST(PromptLogprobs, ReadNoCachedPrefixAndLeaveTheirBlocks) {
  LLM llm(tiny_options(kModel));
  const Job job = scored(200, 1);
  Job plain = job;
  plain.params.prompt_logprobs.reset();
  const RequestOutput cold = run_jobs(llm, {job})[0];
  const RequestOutput hit = run_jobs(llm, {plain})[0];
  EXPECT_EQ(hit.num_cached_tokens, 192) << "200 tokens are 12 full blocks and 8 tokens";
  const RequestOutput again = run_jobs(llm, {job})[0];
  EXPECT_EQ(again.num_cached_tokens, 0);
  expect_equal(again.prompt_logprobs, cold.prompt_logprobs, "again");
  EXPECT_EQ(run_jobs(llm, {plain})[0].num_cached_tokens, 192);
}

TEST(PromptLogprobs, PreemptionScoresNothingTwice) {
  EngineOptions options = tiny_options(kModel);
  const size_t block_bytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // layers, K and V, heads, ...
  options.kv.cache_bytes = 20 * block_bytes;
  options.max_model_len = 256;
  LLM llm(options);
  std::vector<Job> jobs;
  for (int64_t i = 0; i < 6; ++i) {
    jobs.push_back(scored(40 + i, 2, i));
    jobs.back().params.max_tokens = 60;
  }
  const std::vector<RequestOutput> outputs = run_jobs(llm, jobs);
  EXPECT_GT(llm.stats().num_preemptions, 0);
  for (size_t i = 0; i < jobs.size(); ++i) {
    expect_equal(outputs[i].prompt_logprobs,
                 run_engine(tiny_options(kModel), {jobs[i]})[0].prompt_logprobs, "preempted");
  }
}

TEST(PromptLogprobs, ComeWithTheirPassesAndOnce) {
  EngineOptions options = tiny_options(kModel);
  options.prefill_chunk_tokens = 16;
  LLM llm(options);
  Job job = scored(60, 2);
  const PromptLogprobs expected = run_jobs(llm, {job})[0].prompt_logprobs;
  job.params.output_kind = OutputKind::kDelta;
  llm.add_request(job.prompt, job.params);
  RequestOutput all;
  while (llm.has_unfinished()) {
    for (RequestOutput& output : llm.step()) {
      all.append(std::move(output));
      EXPECT_LE(all.prompt_logprobs.size(), static_cast<size_t>(all.num_prompt_tokens_done) + 1);
      EXPECT_GE(all.prompt_logprobs.size(), static_cast<size_t>(all.num_prompt_tokens_done));
    }
  }
  expect_equal(all.prompt_logprobs, expected, "deltas");
}

// What generate shows in parts is what it returns.
TEST(PromptLogprobs, OfEachPassAreShownByGenerate) {
  EngineOptions options = tiny_options(kModel);
  options.prefill_chunk_tokens = 16;
  LLM llm(options);
  const Job job = scored(60, 2);
  RequestOutput shown;
  int num_before_token = 0;
  GenerateOptions generate;
  generate.on_output = [&](size_t, const RequestOutput& output) {
    num_before_token += shown.token_ids.empty() && output.token_ids.empty();
    shown.append(output);
  };
  const RequestOutput returned = llm.generate({job.prompt}, job.params, generate)[0];
  EXPECT_EQ(num_before_token, 3) << "60 tokens are four passes";
  EXPECT_EQ(shown.token_ids, returned.token_ids);
  expect_equal(shown.prompt_logprobs, returned.prompt_logprobs, "shown");
}

TEST(PromptLogprobs, ACancelledPromptHasThoseOfItsPasses) {
  EngineOptions options = tiny_options(kModel);
  options.prefill_chunk_tokens = 16;
  LLM llm(options);
  const Job job = scored(60, 2);
  const PromptLogprobs expected = run_jobs(llm, {job})[0].prompt_logprobs;
  const int64_t id = llm.add_request(job.prompt, job.params);
  llm.step();
  llm.step();
  llm.cancel_request(id);
  const std::vector<RequestOutput> outputs = llm.step();
  ASSERT_EQ(outputs.size(), 1u);
  expect_equal(outputs[0].prompt_logprobs, {expected.begin(), expected.begin() + 33}, "cancelled");
}

// Between two tiles the watch of a pass is asked; the pass then begins again and scores the rest.
TEST(PromptLogprobs, APassCancelledBetweenTilesIsComputedAgain) {
  EngineOptions options = tiny_options(kModel);
  options.max_num_seqs = 8;
  LlmEngine engine(options,
                   {.device = testing::make_test_device(), .policies = make_policies("full")});
  Job job = scored(60, 2);
  const PromptLogprobs expected = run_engine(options, {job})[0].prompt_logprobs;
  job.params.output_kind = OutputKind::kDelta;
  engine.add_request(job.prompt, job.params);
  // The parts of a pass ask, too, while the host waits; how often depends on the machine.
  int num_calls = 0;
  int cancel_at = 0;
  const PassWatch watch{.on_progress = nullptr,
                        .should_cancel = [&] { return ++num_calls >= cancel_at; }};
  RequestOutput all;
  int num_cancelled = -1;
  for (cancel_at = 1; all.token_ids.empty(); ++cancel_at, ++num_cancelled) {
    num_calls = 0;
    for (RequestOutput& output : engine.step(&watch)) all.append(std::move(output));
  }
  // 60 tokens are 8 tiles, which ask once each. Scores are kept: 1, 2 and 3 tiles, then 2 are left.
  EXPECT_GE(num_cancelled, 3);
  while (engine.has_unfinished()) {
    for (RequestOutput& output : engine.step(&watch)) all.append(std::move(output));
  }
  expect_equal(all.prompt_logprobs, expected, "cancelled passes");
}

TEST(PromptLogprobs, ErrorsNameValueAndRange) {
  LLM llm(tiny_options(kModel));
  for (const int32_t bad : {-1, 21}) {
    try {
      llm.add_request(std::vector<int32_t>{1, 2}, {.prompt_logprobs = bad});
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                "prompt_logprobs is " + std::to_string(bad) + ", but must be 0 to 20");
    }
  }
}

}  // namespace
}  // namespace sluice
