// Scopes of prefill policies in the engine: how a prompt is cut into passes, its neighbours in a
// batch and a hit in the prefix index never change a bit, although every selection depends on the
// queries of other rows (support/scoped_policy.h).
#include <functional>

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "support/run_bits.h"
#include "support/scoped_policy.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::make_scoped;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::ScopedPolicy;

constexpr const char* kModel = "qwen3-group2-tied";  // up to 512 positions

EngineOptions resident() {
  EngineOptions options = testing::tiny_options(kModel);
  options.device = "cpu";
  return options;
}

EngineOptions offloaded(KvOffload mode, int32_t block_tokens) {
  EngineOptions options = resident();
  options.kv.offload = mode;
  options.kv.block_size = block_tokens;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  options.kv.host_bytes = 16 << 20;
  return options;
}

EngineOptions in_chunks(EngineOptions options, int32_t chunk_tokens, int32_t pass_tokens) {
  options.prefill_chunk_tokens = chunk_tokens;
  options.max_num_batched_tokens = pass_tokens;
  return options;
}

std::unique_ptr<LlmEngine> make_engine(const EngineOptions& options,
                                       const ScopedPolicy::Options& policy) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = make_device("cpu", {.num_threads = 2}),
                                .policies = make_scoped(policy)});
}

std::vector<RequestOutput> run(const EngineOptions& options, const ScopedPolicy::Options& policy,
                               const std::vector<Job>& jobs) {
  return run_jobs(*make_engine(options, policy), jobs);
}

// Around the borders of scopes, and long enough for several of them.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {127, 128, 129, 300, 470}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(6, length)});
  }
  return jobs;
}

bool same_logprobs(const RequestOutput& a, const RequestOutput& b) {
  return a.token_ids == b.token_ids && a.logprobs[0][0].logprob == b.logprobs[0][0].logprob;
}

TEST(Scope, ChunksAndBatchesDoNotMatter) {
  const std::vector<Job> jobs = make_jobs();
  for (const int32_t scope : {128, 256}) {
    const ScopedPolicy::Options policy{.scope_tokens = scope, .looks_at = scope};
    EngineOptions alone = resident();
    alone.max_num_seqs = 1;
    const std::vector<RequestOutput> reference = run(alone, policy, jobs);
    const std::string what = "scope " + std::to_string(scope);
    expect_all_same(run(resident(), policy, jobs), reference, what + ", in a batch");
    // Chunks and passes that are no multiples of the scope: spans are rounded down.
    for (const auto& [chunk, pass] : {std::pair{256, 256}, std::pair{300, 700}}) {
      expect_all_same(run(in_chunks(resident(), chunk, pass), policy, jobs), reference,
                      what + ", chunks of " + std::to_string(chunk));
    }
    for (const int32_t block_tokens : {128, 256}) {
      const EngineOptions whole = offloaded(KvOffload::kLayerwise, block_tokens);
      expect_all_same(run(whole, policy, jobs), reference, what + ", layer by layer");
      const EngineOptions chunked = offloaded(KvOffload::kChunked, block_tokens);
      expect_all_same(run(in_chunks(chunked, 256, 512), policy, jobs), reference,
                      what + ", chunks of offloaded KV");
    }
  }
}

// What the others compare depends on the queries of the scope, and sees where a scope is cut: a
// policy that looks at more rows than its scope changes with the chunk, in the longest prompt.
TEST(Scope, ASelectionBeyondTheScopeChangesWithTheChunk) {
  const std::vector<Job> jobs = {make_jobs().back()};
  const ScopedPolicy::Options policy{.scope_tokens = 128, .looks_at = 256};
  const RequestOutput whole = run(resident(), policy, jobs)[0];
  EXPECT_FALSE(same_logprobs(whole, run(in_chunks(resident(), 128, 128), policy, jobs)[0]));
  const ScopedPolicy::Options honest{.scope_tokens = 128, .looks_at = 128};
  EXPECT_FALSE(same_logprobs(whole, run(resident(), honest, jobs)[0])) << "a hash of other rows";
}

// A second prompt with the same beginning; hits end at whole scopes.
TEST(Scope, PrefixHitsEqualCold) {
  for (const int32_t scope : {128, 256}) {
    const ScopedPolicy::Options policy{.scope_tokens = scope, .looks_at = scope};
    for (const bool on_host : {false, true}) {
      const EngineOptions options =
          on_host ? in_chunks(offloaded(KvOffload::kChunked, 128), 256, 256) : resident();
      for (const int64_t shared : {200, 256, 300, 400}) {
        std::vector<int32_t> first = random_tokens(470, 1), second = random_tokens(470, 2);
        std::copy_n(first.begin(), shared, second.begin());
        const auto engine = make_engine(options, policy);
        run_jobs(*engine, {{first, sampled(4, 1)}});
        const std::vector<RequestOutput> warm = run_jobs(*engine, {{second, sampled(6, 2)}});
        EXPECT_EQ(warm[0].num_cached_tokens, shared / scope * scope) << "shared " << shared;
        expect_all_same(warm, run(options, policy, {{second, sampled(6, 2)}}),
                        "shared " + std::to_string(shared));
      }
    }
  }
}

// A prompt that ends inside a scope has other queries there than a longer one, so the longer one
// must not find its blocks; nor those that decoding filled.
TEST(Scope, APromptsLastScopeIsNotFound) {
  const ScopedPolicy::Options policy{};
  const auto engine = make_engine(resident(), policy);
  std::vector<int32_t> tokens = random_tokens(240, 1);
  const RequestOutput first = run_jobs(*engine, {{tokens, sampled(40, 1)}})[0];
  tokens.insert(tokens.end(), first.token_ids.begin(), first.token_ids.end());
  for (const int32_t token : random_tokens(100, 3)) tokens.push_back(token);
  const std::vector<RequestOutput> warm = run_jobs(*engine, {{tokens, sampled(6, 2)}});
  EXPECT_EQ(warm[0].num_cached_tokens, 128);
  expect_all_same(warm, run(resident(), policy, {{tokens, sampled(6, 2)}}), "");
}

// Passes that return all logits have other lengths.
TEST(Scope, ScoresDoNotDependOnTheRowsOfAPass) {
  const ScopedPolicy::Options policy{};
  const std::vector<int32_t> tokens = random_tokens(470, 1);
  std::vector<std::vector<TokenScore>> scores;
  for (const int32_t rows : {128, 200, 470}) {
    EngineOptions options = resident();
    options.max_num_seqs = rows;
    scores.push_back(make_engine(options, policy)->score(tokens, nullptr));
  }
  for (const std::vector<TokenScore>& other : scores) {
    ASSERT_EQ(other.size(), tokens.size() - 1);
    for (size_t i = 0; i < other.size(); ++i) {
      ASSERT_EQ(other[i].logprob, scores[0][i].logprob) << "token " << i;
    }
  }
}

void expect_error(const std::function<void()>& act, const std::vector<std::string>& parts) {
  try {
    act();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Scope, PassesThatAreTooShortAreRefused) {
  const ScopedPolicy::Options policy{.scope_tokens = 256, .looks_at = 256};
  const auto start = [&](const EngineOptions& options) {
    return [&, options] { make_engine(options, policy); };
  };
  expect_error(
      start(in_chunks(resident(), 128, 512)),
      {"prefill_chunk_tokens is 128", "256 tokens of a prompt together", "give at least 256"});
  EngineOptions short_passes = resident();
  short_passes.max_num_batched_tokens = 255;
  expect_error(start(short_passes), {"max_num_batched_tokens is 255", "give at least 256"});
  // Blocks of 48 tokens and scopes of 256 end together every 768 tokens, past the longest prompt.
  EngineOptions blocks = in_chunks(offloaded(KvOffload::kChunked, 48), 256, 256);
  expect_error(start(blocks),
               {"max_num_batched_tokens is 256", "whole blocks of 48", "give at least 528"});
  EngineOptions few_rows = resident();
  few_rows.max_num_seqs = 200;
  expect_error([&] { make_engine(few_rows, policy)->score(random_tokens(300, 1), nullptr); },
               {"max_num_seqs is 200", "at least 256 rows"});
  // A prompt shorter than the scope is one span.
  EngineOptions short_prompts = resident();
  short_prompts.max_model_len = 100;
  short_prompts.max_num_batched_tokens = 100;
  EXPECT_NO_THROW(start(short_prompts)());
}

}  // namespace
}  // namespace sluice
