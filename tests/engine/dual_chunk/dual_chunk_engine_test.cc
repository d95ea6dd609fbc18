// An engine with dual chunk attention: answers within the first chunk are those of the same model
// without the key, bit for bit; past it they differ, and are the same wherever KV is, however the
// prompt is cut, whatever runs beside it, with drafts and from the prefix cache.
//
// The arithmetic itself is tested against double precision in tests/ops/zones.
#include "engine/dual_chunk/dual_chunk_engine.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "sluice/inspect.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::jobs_of;
using testing::kChunkTokens;
using testing::run_engine;

class DualChunkEngine : public testing::DualChunkTest {};

TEST_P(DualChunkEngine, TheFirstChunkHasTheBitsOfPlainAttention) {
  const std::vector<Job> jobs = jobs_of({5, 100, kChunkTokens - 20});
  expect_all_same(run_engine(options(), jobs), run_engine(options(false), jobs), "first chunk");
}

TEST_P(DualChunkEngine, PastItAnswersDiffer) {
  const std::vector<Job> jobs = jobs_of({3 * kChunkTokens});
  const auto with_key = run_engine(options(), jobs);
  const auto without = run_engine(options(false), jobs);
  EXPECT_NE(with_key[0].logprobs[0][0].logprob, without[0].logprobs[0][0].logprob);
}

// Rows of several chunks in one pass, of one sequence and of several; decode across a border. On a
// GPU products of another height round differently.
TEST_P(DualChunkEngine, AnswersDoNotDependOnPlacesCutsOrNeighbours) {
  const bool has_experts = GetParam().name == std::string("experts");
  if (!testing::testing_cpu() && (GetParam().kv != KvCacheDtype::kAuto || has_experts)) {
    GTEST_SKIP() << "skipped: products of another height may round a key to another number, or a "
                    "token to another expert";
  }
  const EngineOptions options = this->options();
  const std::vector<Job> jobs =
      jobs_of({50, kChunkTokens - 5, kChunkTokens + 1, 2 * kChunkTokens - 3, 900});
  const std::vector<RequestOutput> expected = run_engine(options, jobs);
  for (const testing::Place& place : testing::sampled_places()) {
    expect_all_alike(run_engine(place.put(options), jobs), expected, place.name);
  }
  for (const int64_t rows : {64, 256, 1008}) {
    EngineOptions cut = options;
    cut.max_num_batched_tokens = rows;
    expect_all_alike(run_engine(cut, jobs), expected, "passes of rows");
  }
  EngineOptions alone = options;
  alone.max_num_seqs = 1;
  expect_all_alike(run_engine(alone, jobs), expected, "alone");
  EngineOptions drafts = options;
  drafts.speculative.method = SpeculativeMethod::kNgram;
  drafts.speculative.num_tokens = 6;
  expect_all_alike(run_engine(drafts, jobs), expected, "drafts");
}

TEST_P(DualChunkEngine, PlacesChangeNoBit) { testing::expect_places_change_no_bit(options()); }

// Both keep their bits beside the other: experts that flow through a ring, and those of a cache.
TEST_P(DualChunkEngine, ExpertsInHostMemoryChangeNoBit) {
  if (GetParam().name != std::string("experts")) GTEST_SKIP() << "skipped: it has no experts";
  EngineOptions options = this->options();
  const std::vector<Job> jobs = jobs_of({kChunkTokens - 5, 2 * kChunkTokens - 3, 900});
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kLayerwise}) {
    if (mode != KvOffload::kOff) options = testing::with_offload(options, mode);
    const std::vector<RequestOutput> expected = run_engine(options, jobs);
    EngineOptions away = options;
    away.weights_offload = WeightsOffload::kExperts;
    for (const size_t cache_bytes : {size_t{0}, size_t{8} << 20}) {
      away.experts_device_bytes = cache_bytes;
      expect_all_same(run_engine(away, jobs), expected, "experts in host memory");
    }
  }
}

TEST_P(DualChunkEngine, SecondTurnsFindTheirPrefix) {
  const EngineOptions options = this->options();
  LLM llm(options);
  const testing::TwoTurns turns;
  testing::run_jobs(llm, turns.first);
  const std::vector<RequestOutput> warm = testing::run_jobs(llm, turns.second);
  EXPECT_GE(warm[0].num_cached_tokens, 560);
  expect_all_alike(warm, run_engine(options, turns.second), "warm");
}

TEST_P(DualChunkEngine, WhatItCannotDoIsRefusedByName) {
  EngineOptions options = this->options();
  const auto expect_refused = [&](ErrorCode code, const char* text) {
    try {
      plan_memory(options);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
    }
  };
  for (const char* policy : {"streaming", "streaming+quest", "streaming+full"}) {
    options.sparse.policy = policy;
    expect_refused(ErrorCode::kUnsupported, "sparse_policy 'streaming' does not choose by the");
    options.max_model_len = kChunkTokens;
    EXPECT_NO_THROW(plan_memory(options));
    options = this->options();
  }
  options.kv.block_size = 512;
  expect_refused(ErrorCode::kInvalidArgument, "block_size is 512");
}

INSTANTIATE_TEST_SUITE_P(Models, DualChunkEngine, testing::dual_chunk_cases(), testing::name_of);

}  // namespace
}  // namespace sluice
