// Prefill policies that make tile masks, past the first chunk of dual chunk attention: the same
// answers wherever KV is, however the prompt is cut and whatever runs beside it, alone and with a
// decode policy that makes lists; in the first chunk those of the model without the key.
//
// Which queries score which keys is tested in tests/attention/policy_test.cc, attention under masks
// against double precision in tests/ops/zones.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/dual_chunk/dual_chunk_engine.h"
#include "engine/llm_engine.h"
#include "sluice/inspect.h"
#include "support/sample_of.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::jobs_of;
using testing::kChunkTokens;
using testing::run_engine;

constexpr const char* kAllPolicies[] = {"xattention+full", "avgpool+full",    "xattention+quest",
                                        "sampled+full",    "minference+full", "flexprefill+full",
                                        "minference+quest"};

// A sanitized build runs two or three of them.
const std::vector<const char*> kPolicies = testing::sample_of(kAllPolicies, 3);

class DualChunkTiles : public testing::DualChunkTest {
 protected:
  EngineOptions sparse(const std::string& name, bool has_key = true) const {
    EngineOptions options = this->options(has_key);
    options.kv.block_size = 128;
    options.sparse.policy = name;
    options.sparse.threshold_tokens = 0;
    options.sparse.tail_tokens = 0;
    if (name == "avgpool+full") options.sparse.topk_tokens = 256;
    if (name.starts_with("minference") || name == "flexprefill+full") {
      options.sparse.segment_tokens = 128;
      options.sparse.vertical_tokens = 24;
    }
    if (name.starts_with("minference")) {
      options.sparse.slash_tokens = 256;
    } else if (name != "avgpool+full") {
      options.sparse.coverage = 0.4;
    }
    if (name == "flexprefill+full") options.sparse.min_budget_tokens = 128;
    if (name == "sampled+full") options.sparse.column_tokens = 0;
    if (name.ends_with("quest")) options.sparse.topk_tokens = 64;
    return options;
  }
};

std::vector<Job> tile_jobs() {
  return jobs_of({130, kChunkTokens + 1, 2 * kChunkTokens + 100, 4 * kChunkTokens - 30});
}

TEST_P(DualChunkTiles, MasksLeaveTilesOut) {
  const std::vector<Job> jobs = jobs_of({900});
  EngineOptions full = options();
  full.kv.block_size = 128;
  const float all = run_engine(full, jobs)[0].logprobs[0][0].logprob;
  for (const std::string policy : kPolicies) {
    EXPECT_NE(run_engine(sparse(policy), jobs)[0].logprobs[0][0].logprob, all) << policy;
  }
}

TEST_P(DualChunkTiles, TheFirstChunkHasTheBitsOfPlainAttention) {
  const std::vector<Job> jobs = jobs_of({100, kChunkTokens - 20});
  for (const std::string policy : kPolicies) {
    expect_all_same(run_engine(sparse(policy), jobs), run_engine(sparse(policy, false), jobs),
                    policy);
  }
}

TEST_P(DualChunkTiles, AnswersDoNotDependOnPlacesCutsOrNeighbours) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: passes of other heights choose otherwise";
  for (const std::string policy : kPolicies) {
    const EngineOptions options = sparse(policy);
    const std::vector<RequestOutput> expected = run_engine(options, tile_jobs());
    for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
      for (const int32_t num_slots : {2, 5}) {
        EngineOptions away = testing::with_offload(options, mode);
        away.kv.num_slots = num_slots;
        away.kv.slot_blocks = 1;
        expect_all_alike(run_engine(away, tile_jobs()), expected, policy);
      }
    }
    for (const int64_t rows : {128, 384, 1152}) {
      EngineOptions cut = options;
      cut.max_num_batched_tokens = rows;
      expect_all_alike(run_engine(cut, tile_jobs()), expected, policy);
    }
    EngineOptions alone = options;
    alone.max_num_seqs = 1;
    expect_all_alike(run_engine(alone, tile_jobs()), expected, policy);
  }
}

// Passes of the same rows, so that on a GPU, too, no bit may change.
TEST_P(DualChunkTiles, PlacesChangeNoBit) {
  for (const std::string policy : kPolicies) {
    EngineOptions options = sparse(policy);
    options.enable_prefix_caching = false;
    options.max_num_seqs = 1;
    options.max_num_batched_tokens = 384;
    const std::vector<RequestOutput> expected = run_engine(options, tile_jobs());
    const EngineOptions away = testing::with_offload(options, KvOffload::kChunked);
    expect_all_same(run_engine(away, tile_jobs()), expected, policy);
    EngineOptions stay = away;
    stay.kv.device_bytes = size_t{1} << 20;
    expect_all_same(run_engine(stay, tile_jobs()), expected, policy);
  }
}

void expect_refused(const EngineOptions& options, ErrorCode code, const std::string& text) {
  try {
    plan_memory(options);
    ADD_FAILURE() << options.sparse.policy;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
  }
}

TEST_P(DualChunkTiles, WhatDoesNotKnowZonesIsRefusedByName) {
  EngineOptions audit = sparse("xattention+full");
  audit.sparse.audit = true;
  EXPECT_THROW(plan_memory(audit), Error);
  EngineOptions columns = sparse("sampled+full");
  columns.sparse.column_tokens = 128;
  expect_refused(columns, ErrorCode::kUnsupported, "'sampled' does not choose by the queries");
  EngineOptions segments = sparse("minference+full");
  segments.sparse.segment_tokens = 384;
  expect_refused(segments, ErrorCode::kInvalidArgument, "segments that do not divide");
}

INSTANTIATE_TEST_SUITE_P(Models, DualChunkTiles, testing::dual_chunk_cases(), testing::name_of);

}  // namespace
}  // namespace sluice
