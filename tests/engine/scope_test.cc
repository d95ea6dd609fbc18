// Scopes of prefill policies in the engine: how a prompt is cut into passes, its neighbours in a
// batch and a hit in the prefix index never change a bit, although every selection depends on the
// queries of other rows (support/scoped_policy.h).
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

// Around the borders of scopes, and long enough for several of them.
std::vector<Job> scoped_jobs() {
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
  const std::vector<Job> jobs = scoped_jobs();
  for (const int32_t scope : {128, 256}) {
    const ScopedPolicy::Options policy{.scope_tokens = scope, .looks_at = scope};
    EngineOptions alone = scoped_resident();
    alone.max_num_seqs = 1;
    const std::vector<RequestOutput> reference = run_scoped(alone, policy, jobs);
    const std::string what = "scope " + std::to_string(scope);
    expect_all_same(run_scoped(scoped_resident(), policy, jobs), reference, what + ", in a batch");
    // Chunks and passes that are no multiples of the scope: spans are rounded down.
    for (const auto& [chunk, pass] : {std::pair{256, 256}, std::pair{300, 700}}) {
      expect_all_same(run_scoped(in_chunks(scoped_resident(), chunk, pass), policy, jobs),
                      reference, what + ", chunks of " + std::to_string(chunk));
    }
    for (const int32_t block_tokens : {128, 256}) {
      const EngineOptions whole = scoped_offloaded(KvOffload::kLayerwise, block_tokens);
      expect_all_same(run_scoped(whole, policy, jobs), reference, what + ", layer by layer");
      const EngineOptions chunked = scoped_offloaded(KvOffload::kChunked, block_tokens);
      expect_all_same(run_scoped(in_chunks(chunked, 256, 512), policy, jobs), reference,
                      what + ", chunks of offloaded KV");
    }
  }
}

// What the others compare depends on the queries of the scope, and sees where a scope is cut: a
// policy that looks at more rows than its scope changes with the chunk, in the longest prompt.
TEST(Scope, ASelectionBeyondTheScopeChangesWithTheChunk) {
  const std::vector<Job> jobs = {scoped_jobs().back()};
  const ScopedPolicy::Options policy{.scope_tokens = 128, .looks_at = 256};
  const RequestOutput whole = run_scoped(scoped_resident(), policy, jobs)[0];
  EXPECT_FALSE(
      same_logprobs(whole, run_scoped(in_chunks(scoped_resident(), 128, 128), policy, jobs)[0]));
  const ScopedPolicy::Options honest{.scope_tokens = 128, .looks_at = 128};
  EXPECT_FALSE(same_logprobs(whole, run_scoped(scoped_resident(), honest, jobs)[0]))
      << "a hash of other rows";
}

// A second prompt with the same beginning; hits end at whole scopes.
TEST(Scope, PrefixHitsEqualCold) {
  for (const int32_t scope : {128, 256}) {
    const ScopedPolicy::Options policy{.scope_tokens = scope, .looks_at = scope};
    for (const bool on_host : {false, true}) {
      const EngineOptions options =
          on_host ? in_chunks(scoped_offloaded(KvOffload::kChunked, 128), 256, 256)
                  : scoped_resident();
      for (const int64_t shared : {200, 256, 300, 400}) {
        std::vector<int32_t> first = random_tokens(470, 1), second = random_tokens(470, 2);
        std::copy_n(first.begin(), shared, second.begin());
        const auto engine = scoped_engine(options, policy);
        run_jobs(*engine, {{first, sampled(4, 1)}});
        const std::vector<RequestOutput> warm = run_jobs(*engine, {{second, sampled(6, 2)}});
        EXPECT_EQ(warm[0].num_cached_tokens, shared / scope * scope) << "shared " << shared;
        expect_all_same(warm, run_scoped(options, policy, {{second, sampled(6, 2)}}),
                        "shared " + std::to_string(shared));
      }
    }
  }
}

// A prompt that ends inside a scope has other queries there than a longer one, so the longer one
// must not find its blocks; nor those that decoding filled.
TEST(Scope, APromptsLastScopeIsNotFound) {
  const ScopedPolicy::Options policy{};
  const auto engine = scoped_engine(scoped_resident(), policy);
  std::vector<int32_t> tokens = random_tokens(240, 1);
  const RequestOutput first = run_jobs(*engine, {{tokens, sampled(40, 1)}})[0];
  tokens.insert(tokens.end(), first.token_ids.begin(), first.token_ids.end());
  for (const int32_t token : random_tokens(100, 3)) tokens.push_back(token);
  const std::vector<RequestOutput> warm = run_jobs(*engine, {{tokens, sampled(6, 2)}});
  EXPECT_EQ(warm[0].num_cached_tokens, 128);
  expect_all_same(warm, run_scoped(scoped_resident(), policy, {{tokens, sampled(6, 2)}}), "");
}

// The last rows of a prompt attend to everything: not of the prompt that is hit, nor of the one
// that hits.
TEST(Scope, HitsEndBeforeTheTailsOfBothPrompts) {
  const ScopedPolicy::Options policy{.tail_tokens = 100};
  const std::vector<int32_t> tokens = random_tokens(470, 1);
  const auto prefix = [&](int64_t length) {
    return Job{{tokens.begin(), tokens.begin() + length}, sampled(6, length)};
  };
  for (const auto& [first, second] : {std::pair{320, 470}, std::pair{470, 320}}) {
    const auto engine = scoped_engine(scoped_resident(), policy);
    run_jobs(*engine, {prefix(first)});
    const std::vector<RequestOutput> warm = run_jobs(*engine, {prefix(second)});
    EXPECT_EQ(warm[0].num_cached_tokens, 128) << "256 would be within 100 tokens of 320";
    expect_all_same(warm, run_scoped(scoped_resident(), policy, {prefix(second)}),
                    std::to_string(first) + " before " + std::to_string(second));
  }
}

// Passes that return all logits have other lengths.
TEST(Scope, ScoresDoNotDependOnTheRowsOfAPass) {
  const ScopedPolicy::Options policy{};
  const std::vector<int32_t> tokens = random_tokens(470, 1);
  std::vector<std::vector<TokenScore>> scores;
  for (const int32_t rows : {128, 200, 470}) {
    EngineOptions options = scoped_resident();
    options.max_num_seqs = rows;
    scores.push_back(scoped_engine(options, policy)->solo().score(tokens, nullptr));
  }
  for (const std::vector<TokenScore>& other : scores) {
    ASSERT_EQ(other.size(), tokens.size() - 1);
    for (size_t i = 0; i < other.size(); ++i) {
      ASSERT_EQ(other[i].logprob, scores[0][i].logprob) << "token " << i;
    }
  }
}

TEST(Scope, PassesThatAreTooShortAreRefused) {
  const ScopedPolicy::Options policy{.scope_tokens = 256, .looks_at = 256};
  const auto start = [&](const EngineOptions& options) {
    return [&, options] { scoped_engine(options, policy); };
  };
  expect_refused(
      start(in_chunks(scoped_resident(), 128, 512)),
      {"prefill_chunk_tokens is 128", "256 tokens of a prompt together", "give at least 256"});
  EngineOptions short_passes = scoped_resident();
  short_passes.max_num_batched_tokens = 255;
  expect_refused(start(short_passes), {"max_num_batched_tokens is 255", "give at least 256"});
  // Blocks of 48 tokens and scopes of 256 end together every 768 tokens, past the longest prompt.
  EngineOptions blocks = in_chunks(scoped_offloaded(KvOffload::kChunked, 48), 256, 256);
  expect_refused(start(blocks),
                 {"max_num_batched_tokens is 256", "whole blocks of 48", "give at least 528"});
  EngineOptions few_rows = scoped_resident();
  few_rows.max_num_seqs = 200;
  expect_refused(
      [&] { scoped_engine(few_rows, policy)->solo().score(random_tokens(300, 1), nullptr); },
      {"max_num_seqs is 200", "at least 256 rows"});
  // A prompt shorter than the scope is one span.
  EngineOptions short_prompts = scoped_resident();
  short_prompts.max_model_len = 100;
  short_prompts.max_num_batched_tokens = 100;
  EXPECT_NO_THROW(start(short_prompts)());
}

}  // namespace
}  // namespace sluice
