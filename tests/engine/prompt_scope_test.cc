// The whole prompt as one scope (kPromptScopeTokens; sparse_segment_tokens 0): a prompt is one
// pass, neighbours and the place of KV change no bit, the prefix index is not used, and settings
// that would cut a prompt are refused.
#include <functional>

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/scoped_engine.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::expect_refused;
using testing::in_chunks;
using testing::Job;
using testing::random_tokens;
using testing::run_jobs;
using testing::run_scoped;
using testing::sampled;
using testing::scoped_engine;
using testing::scoped_offloaded;
using testing::scoped_resident;
using testing::ScopedPolicy;

constexpr int32_t kLongest = 512;  // of the model's prompts
constexpr ScopedPolicy::Options kWhole{.scope_tokens = kPromptScopeTokens, .looks_at = kLongest};

std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {127, 128, 300, 470, 500}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(6, length)});
  }
  return jobs;
}

TEST(PromptScope, BatchesAndThePlaceOfKvDoNotMatter) {
  const std::vector<Job> jobs = make_jobs();
  EngineOptions alone = scoped_resident();
  alone.max_num_seqs = 1;
  const std::vector<RequestOutput> reference = run_scoped(alone, kWhole, jobs);
  expect_all_same(run_scoped(scoped_resident(), kWhole, jobs), reference, "in a batch");
  // One prompt of 500 tokens fills a pass, so the others wait.
  expect_all_same(run_scoped(in_chunks(scoped_resident(), kLongest, kLongest), kWhole, jobs),
                  reference, "in passes of one prompt");
  for (const int32_t block_tokens : {128, 256}) {
    for (const KvOffload mode : {KvOffload::kLayerwise, KvOffload::kChunked}) {
      expect_all_same(run_scoped(scoped_offloaded(mode, block_tokens), kWhole, jobs), reference,
                      "offloaded");
    }
  }
}

// What the comparisons above compare: rows whose selection depends on the prompt's last queries.
TEST(PromptScope, SelectionsDependOnTheWholePrompt) {
  std::vector<int32_t> tokens = random_tokens(470, 1);
  const auto first = [&](const ScopedPolicy::Options& policy) {
    return run_scoped(scoped_resident(), policy, {{tokens, sampled(1, 1)}})[0].logprobs[0][0];
  };
  EXPECT_NE(first(kWhole).logprob, first({.scope_tokens = 256, .looks_at = 256}).logprob);
}

// Nothing is found, by the same prompt neither, and nothing is entered.
TEST(PromptScope, ThePrefixIndexIsNotUsed) {
  for (const EngineOptions& options :
       {scoped_resident(), scoped_offloaded(KvOffload::kChunked, 128)}) {
    const auto engine = scoped_engine(options, kWhole);
    const Job job{random_tokens(470, 1), sampled(40, 1)};
    const std::vector<RequestOutput> cold = run_jobs(*engine, {job});
    EXPECT_EQ(engine->blocks().num_cached_blocks(), 0);
    const std::vector<RequestOutput> again = run_jobs(*engine, {job});
    EXPECT_EQ(again[0].num_cached_tokens, 0);
    EXPECT_EQ(engine->stats().num_cached_tokens, 0);
    expect_all_same(again, cold, "the second time");
  }
}

// A preempted sequence is a longer prompt, which is one pass as well.
TEST(PromptScope, PreemptedSequencesComeBack) {
  EngineOptions options = scoped_resident();
  options.max_model_len = 400;
  options.kv.cache_bytes = size_t{32} * 16 * 2 * 2 * 2 * 32 * 2;  // 32 blocks
  const auto engine = scoped_engine(options, kWhole);
  std::vector<Job> jobs;
  for (const int64_t length : {200, 210}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(100, length)});
  }
  for (const RequestOutput& output : run_jobs(*engine, jobs)) {
    EXPECT_EQ(output.token_ids.size(), 100u);
  }
  EXPECT_GT(engine->stats().num_preemptions, 0);
}

// No row of prefill has history, so no softmax state is planned for it.
TEST(PromptScope, PlansNoStateForPrefill) {
  for (const KvOffload mode : {KvOffload::kLayerwise, KvOffload::kChunked}) {
    EngineOptions options = scoped_offloaded(mode, 128);
    options.max_num_seqs = 3;
    const auto engine = scoped_engine(options, kWhole);
    EXPECT_EQ(engine->plan().passes.scheduler.max_rows_with_history, 3);
    EXPECT_EQ(engine->plan().passes.scheduler.prefill_chunk_tokens, kLongest);
  }
}

TEST(PromptScope, PassesThatWouldCutAPromptAreRefused) {
  const auto start = [&](const EngineOptions& options) {
    return [options] { scoped_engine(options, kWhole); };
  };
  expect_refused(start(in_chunks(scoped_resident(), 256, kLongest)),
                 {"prefill_chunk_tokens is 256", "sparse_segment_tokens 0", "one pass",
                  "give at least 512", "take segments"});
  EngineOptions passes = scoped_offloaded(KvOffload::kChunked, 128);
  passes.max_num_batched_tokens = 384;
  expect_refused(start(passes), {"max_num_batched_tokens is 384", "give at least 512"});
  // The remedies.
  passes.max_num_batched_tokens = kLongest;
  EXPECT_NO_THROW(start(passes)());
  passes.max_num_batched_tokens = 384;
  passes.max_model_len = 384;
  EXPECT_NO_THROW(start(passes)());
}

// A pass that returns all logits has max_num_seqs rows.
TEST(PromptScope, ScoresATextInOnePassOrNotAtAll) {
  const std::vector<int32_t> tokens = random_tokens(300, 1);
  EngineOptions options = scoped_resident();
  options.max_num_seqs = 300;
  EXPECT_EQ(scoped_engine(options, kWhole)->solo().score(tokens, nullptr).size(), 299u);
  options.max_num_seqs = 299;
  expect_refused([&] { scoped_engine(options, kWhole)->solo().score(tokens, nullptr); },
                 {"max_num_seqs is 299", "300 tokens is one pass", "raise it to 300"});
}

// ---- minference --------------------------------------------------------------------------------

EngineOptions minference(EngineOptions options, int32_t segment_tokens) {
  options.model = testing::tiny_options("llama-group2-linear").model;  // of 2K tokens
  options.kv.block_size = 128;
  options.sparse = {.policy = "minference+full",
                    .sink_tokens = 0,
                    .recent_tokens = 0,
                    .threshold_tokens = 0,
                    .tail_tokens = 50,
                    .segment_tokens = segment_tokens,
                    .vertical_tokens = 60,
                    .slash_tokens = 128};
  return options;
}

// Segments that are longer than any prompt select the same, by other rules of passes.
TEST(PromptScope, MInferenceHasIt) {
  std::vector<Job> jobs;
  for (const int64_t length : {767, 70, 769, 1400}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(6, length)});
  }
  const auto run = [&](const EngineOptions& options, int32_t segment_tokens) {
    return testing::run_engine(minference(options, segment_tokens), jobs);
  };
  const std::vector<RequestOutput> reference = run(scoped_resident(), 0);
  expect_all_same(run(scoped_resident(), 2048), reference, "a segment of 2048");
  EXPECT_NE(run(scoped_resident(), 512)[3].logprobs[0][0].logprob,
            reference[3].logprobs[0][0].logprob);
  for (const KvOffload mode : {KvOffload::kLayerwise, KvOffload::kChunked}) {
    expect_all_same(run(scoped_offloaded(mode, 128), 0), reference, "offloaded");
  }
}

}  // namespace
}  // namespace sluice
