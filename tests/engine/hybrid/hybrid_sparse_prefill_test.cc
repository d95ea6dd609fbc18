// Sparse prefill of hybrids: policies select for the layers that attend, and only for these, with
// the same bits wherever KV is.
//
// The model's one such layer is its second. Passes have one sequence and equal rows, so that a GPU,
// too, gives equal bits (tests/engine/sparse_prefill_test.cc).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "sluice/llm.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Job;
using testing::run_engine;

constexpr int32_t kTileRows = 128;

// Of a tile's row few keys: nothing by the rule but the diagonal.
std::vector<SparseOptions> sparse_cases() {
  const auto bare = [](const char* policy, SparseOptions options) {
    options.policy = policy;
    options.sink_tokens = options.recent_tokens = options.threshold_tokens = 0;
    options.tail_tokens = 1;
    return options;
  };
  return {bare("xattention+full", {.coverage = 0.3, .stride = 8}),
          bare("avgpool+quest", {.topk_tokens = 64, .coverage = 0.3}),
          bare("minference+full",
               {.segment_tokens = 2 * kTileRows, .vertical_tokens = 40, .slash_tokens = kTileRows}),
          bare("flexprefill+quest", {.topk_tokens = 64,
                                     .coverage = 0.3,
                                     .min_budget_tokens = 0,
                                     .segment_tokens = 2 * kTileRows,
                                     .vertical_tokens = 40,
                                     .divergence = 0.0})};
}

EngineOptions sparse_options(const SparseOptions& sparse) {
  EngineOptions options = testing::tiny_options("qwen35-hybrid-chunks");
  options.kv.block_size = kTileRows;
  options.max_num_seqs = 1;
  options.enable_prefix_caching = false;
  options.max_num_batched_tokens = 4 * kTileRows;
  options.sparse = sparse;
  return options;
}

// A few rows after ends of tiles and of segments: those of a prompt's last tile read everything,
// and states soon forget what other rows have read.
std::vector<Job> sparse_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {386, 385, 387}) {
    jobs.push_back(
        {testing::random_tokens(length, static_cast<uint64_t>(length)), testing::sampled(20, 1)});
  }
  return jobs;
}

TEST(HybridSparsePrefill, ThePlaceOfKvChangesNoBit) {
  const std::vector<Job> jobs = sparse_jobs();
  for (const SparseOptions& sparse : sparse_cases()) {
    for (const int32_t num_rows : {2 * kTileRows, 4 * kTileRows}) {
      EngineOptions options = sparse_options(sparse);
      options.max_num_batched_tokens = num_rows;
      const std::vector<RequestOutput> expected = run_engine(options, jobs);
      for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
        const std::string what = sparse.policy + ", " + kv_offload_name(mode) + ", passes of " +
                                 std::to_string(num_rows);
        testing::expect_all_same(run_engine(testing::with_offload(options, mode), jobs), expected,
                                 what);
      }
    }
  }
}

// The same decode, and everything in prefill.
EngineOptions dense_options(const SparseOptions& sparse) {
  if (sparse.policy.ends_with("+full")) return sparse_options({.policy = "full"});
  return sparse_options({.policy = "full+quest",
                         .topk_tokens = sparse.topk_tokens,
                         .sink_tokens = 0,
                         .recent_tokens = 0,
                         .threshold_tokens = 0});
}

// Of the most likely token's log-probability at any step.
float largest_difference(const RequestOutput& a, const RequestOutput& b) {
  float largest = 0;
  for (size_t step = 0; step < a.logprobs.size(); ++step) {
    const float difference = a.logprobs[step][0].logprob - b.logprobs[step][0].logprob;
    largest = std::max(largest, std::abs(difference));
  }
  return largest;
}

// The dense layers of a policy are counted among those that attend, and with the only one of them
// the answer is that of full attention: nothing else of the model asks the policy.
TEST(HybridSparsePrefill, SelectsForLayersThatAttendAlone) {
  const std::vector<Job> jobs = sparse_jobs();
  for (const SparseOptions& sparse : sparse_cases()) {
    const std::vector<RequestOutput> full = run_engine(dense_options(sparse), jobs);
    const std::vector<RequestOutput> few = run_engine(sparse_options(sparse), jobs);
    for (size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_GT(largest_difference(few[i], full[i]), 0.002) << sparse.policy << ", job " << i;
    }
    SparseOptions dense = sparse;
    dense.dense_layers = 1;
    testing::expect_all_same(run_engine(sparse_options(dense), jobs), full, sparse.policy);
  }
}

}  // namespace
}  // namespace sluice
