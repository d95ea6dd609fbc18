// Engines with sparse_audit, and what they measured.
//
// Used by audit_test and request_audit_test. Thread rule: host thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "device/trace.h"
#include "engine/llm_engine.h"
#include "ops/tiles/audit_mass.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {

inline constexpr int32_t kTile = kMaskTileTokens;

struct AuditedPolicy {
  const char* name;
  SparseOptions options;
};

// Nothing is attended by the rule alone but the diagonal.
inline const std::vector<AuditedPolicy> kAuditedPolicies = {
    {"sampled+full", {.coverage = 0.4, .column_tokens = 20}},
    {"minference+full",
     {.segment_tokens = 2 * kTile, .vertical_tokens = 40, .slash_tokens = 2 * kTile}},
    {"xattention+quest", {.topk_tokens = 64, .coverage = 0.5, .stride = 8}},
    {"avgpool+full", {.topk_tokens = 2 * kTile}},
    {"flexprefill+full",
     {.coverage = 0.4, .min_budget_tokens = 0, .segment_tokens = 2 * kTile, .vertical_tokens = 40}},
};

// A model with 2 layers, 4 query and 2 KV heads, of up to 2K positions; blocks of a tile. On a GPU
// one sequence in a pass: passes of another height round differently there.
inline EngineOptions audited(const AuditedPolicy& policy) {
  EngineOptions options = tiny_options("llama-group2-linear");
  options.kv.block_size = kTile;
  options.max_num_batched_tokens = 8192;  // all prompts of a test
  if (!testing_cpu()) options.max_num_seqs = 1;
  options.sparse = policy.options;
  options.sparse.policy = policy.name;
  options.sparse.sink_tokens = options.sparse.recent_tokens = options.sparse.threshold_tokens = 0;
  options.sparse.tail_tokens = 1;
  options.sparse.audit = true;
  return options;
}

inline EngineOptions offloaded(EngineOptions options, KvOffload mode) {
  options.kv.offload = mode;
  options.kv.host_bytes = 32 << 20;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  return options;
}

// Chunks of four tiles, of one sequence in a pass or of two; a scope of every policy here divides
// them.
inline EngineOptions in_chunks(EngineOptions options, int32_t num_seqs = 1) {
  options.max_num_seqs = num_seqs;
  options.prefill_chunk_tokens = 4 * kTile;
  options.max_num_batched_tokens = num_seqs * 4 * kTile;
  return options;
}

// Prompts of these lengths.
inline std::vector<Job> jobs_of(const std::vector<int64_t>& lengths) {
  std::vector<Job> jobs;
  for (const int64_t length : lengths) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(8, length)});
  }
  return jobs;
}

// Counts what the compute stream ran.
class CallCounter final : public TraceSink {
 public:
  explicit CallCounter(std::string_view op_name) : op_name_(op_name) {}
  int64_t num_calls() const { return num_calls_; }
  void take(const std::string&, std::vector<TraceSpan> spans) override {
    num_calls_ += std::ranges::count(spans, op_name_, &TraceSpan::op_name);
  }

 private:
  std::string_view op_name_;
  int64_t num_calls_ = 0;
};

using LayerMasses = std::vector<MassObservations>;

struct AuditedRun {
  std::vector<RequestOutput> outputs;
  LayerMasses mass;
  int64_t num_audits = 0;
  int64_t num_preemptions = 0;
};

inline AuditedRun run_audited(const EngineOptions& options, const std::vector<Job>& jobs) {
  CallCounter counter(testing_cpu() ? "audit mass" : "audit_mass");
  AuditedRun result;
  {
    LlmEngine engine(options,
                     {.device = make_test_device(
                          {.num_threads = options.num_threads.value_or(2), .trace = &counter})});
    result.outputs = run_jobs(engine, jobs);
    result.mass = engine.observations().captured_mass;
    result.num_preemptions = engine.stats().num_preemptions;
  }
  result.num_audits = counter.num_calls();
  return result;
}

// Audited rows of the query tiles [first_q_tile, end) of each prompt, where the last tile is the
// one before the tile of a tail row.
inline int64_t expected_rows(const std::vector<Job>& jobs, int64_t first_q_tile,
                             int64_t tail_tokens) {
  int64_t count = 0;
  for (const Job& job : jobs) {
    const int64_t end = (std::ssize(job.prompt) - tail_tokens) / kTile;
    for (int32_t group = 0; group * kAuditGroupTiles < end; ++group) {
      const int32_t q_tile = audit_row(group) / kTile;
      count += q_tile >= first_q_tile && q_tile < end ? 1 : 0;
    }
  }
  return count;
}

inline void expect_same_mass(const LayerMasses& a, const LayerMasses& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t layer = 0; layer < a.size(); ++layer) {
    EXPECT_EQ(a[layer].num_rows, b[layer].num_rows) << what;
    EXPECT_EQ(a[layer].num_skipped, b[layer].num_skipped) << what;
    EXPECT_EQ(a[layer].captured, b[layer].captured) << what;
    EXPECT_EQ(a[layer].standard_error, b[layer].standard_error) << what;
    EXPECT_EQ(a[layer].of_heads, b[layer].of_heads) << what;
  }
}

}  // namespace sluice::testing
