// sparse_audit: which rows count, what they say of masks whose mass is known, and that KV in host
// memory, chunks, neighbours and threads change neither the tallies nor, by them, any text. The
// mass of a row is checked in tests/ops/audit_mass_test.cc against double precision.
#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/trace.h"
#include "engine/llm_engine.h"
#include "ops/audit_mass.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;

constexpr const char* kModel =
    "llama-group2-linear";  // 2 layers, 4 query and 2 KV heads, 2K tokens
constexpr int32_t kTile = 128, kLayers = 2, kQHeads = 4;

struct PolicyCase {
  const char* name;
  SparseOptions options;
};

// Nothing is attended by the rule alone but the diagonal.
const std::vector<PolicyCase> kPolicies = {
    {"sampled+full", {.coverage = 0.4, .column_tokens = 20}},
    {"minference+full",
     {.segment_tokens = 2 * kTile, .vertical_tokens = 40, .slash_tokens = 2 * kTile}},
    {"xattention+quest", {.topk_tokens = 64, .coverage = 0.5, .stride = 8}},
    {"avgpool+full", {.topk_tokens = 2 * kTile}},
};

EngineOptions audited(const PolicyCase& policy) {
  EngineOptions options = testing::tiny_options(kModel);
  options.device = "cpu";
  options.kv.block_size = kTile;
  options.max_num_batched_tokens = 8192;  // all prompts of make_jobs
  options.sparse = policy.options;
  options.sparse.policy = policy.name;
  options.sparse.sink_tokens = options.sparse.recent_tokens = options.sparse.threshold_tokens = 0;
  options.sparse.tail_tokens = 1;
  options.sparse.audit = true;
  return options;
}

EngineOptions offloaded(EngineOptions options, KvOffload mode) {
  options.kv.offload = mode;
  options.kv.host_bytes = 32 << 20;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  return options;
}

// Chunks of four tiles, one sequence at a time; a scope of every policy here divides them.
EngineOptions in_chunks(EngineOptions options) {
  options.max_num_seqs = 1;
  options.prefill_chunk_tokens = options.max_num_batched_tokens = 4 * kTile;
  return options;
}

std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {2000, 1500, 1025, 700, 70}) {
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

struct AuditedRun {
  std::vector<RequestOutput> outputs;
  std::vector<MassObservations> mass;
  int64_t num_audits = 0;
};

AuditedRun run(const EngineOptions& options, const std::vector<Job>& jobs = make_jobs()) {
  CallCounter counter("audit mass");
  AuditedRun result;
  {
    LlmEngine engine(
        options, {.device = make_device(
                      "cpu", {.num_threads = options.num_threads.value_or(2), .trace = &counter})});
    result.outputs = run_jobs(engine, jobs);
    result.mass = engine.observations().captured_mass;
  }
  result.num_audits = counter.num_calls();
  return result;
}

// Audited rows of the query tiles [first_q_tile, end) of each prompt, where the last tile is the
// one before the tile of a tail row.
int64_t expected_rows(const std::vector<Job>& jobs, int32_t first_q_tile, int64_t tail_tokens) {
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

void expect_same_mass(const AuditedRun& a, const AuditedRun& b, const std::string& what) {
  ASSERT_EQ(a.mass.size(), b.mass.size()) << what;
  for (size_t layer = 0; layer < a.mass.size(); ++layer) {
    const MassObservations& x = a.mass[layer];
    const MassObservations& y = b.mass[layer];
    EXPECT_EQ(x.num_rows, y.num_rows) << what;
    EXPECT_EQ(x.num_skipped, y.num_skipped) << what;
    EXPECT_EQ(x.captured, y.captured) << what;
    EXPECT_EQ(x.standard_error, y.standard_error) << what;
    EXPECT_EQ(x.of_heads, y.of_heads) << what;
  }
}

TEST(Audit, CountsOneRowOfEachGroupInWholeTilesBeforeTheTail) {
  const int64_t expected = expected_rows(make_jobs(), 0, 1);
  ASSERT_GE(expected, 4);
  for (const PolicyCase& policy : kPolicies) {
    const AuditedRun seen = run(audited(policy));
    ASSERT_EQ(seen.mass.size(), size_t{kLayers}) << policy.name;
    for (const MassObservations& layer : seen.mass) {
      EXPECT_EQ(layer.num_rows, expected) << policy.name;
      EXPECT_EQ(layer.num_skipped, 0);
      ASSERT_TRUE(layer.captured.has_value());
      EXPECT_LT(*layer.captured, 1) << policy.name;
      EXPECT_GT(*layer.captured, 0);
      EXPECT_GT(layer.standard_error, 0);
      EXPECT_EQ(layer.of_heads.size(), size_t{kQHeads});
    }
  }
}

TEST(Audit, RowsThatTheRuleMakesDenseDoNotCount) {
  EngineOptions options = audited(kPolicies[3]);
  const int32_t first_audited = audit_row(0) / kTile;
  for (const int32_t threshold : {first_audited * kTile, (first_audited + 1) * kTile}) {
    options.sparse.threshold_tokens = threshold;
    EXPECT_EQ(run(options).mass[0].num_rows, expected_rows(make_jobs(), threshold / kTile, 1));
  }
  EXPECT_NE(expected_rows(make_jobs(), first_audited, 1),
            expected_rows(make_jobs(), first_audited + 1, 1));
  options.sparse.threshold_tokens = 0;
  options.sparse.tail_tokens = 900;
  EXPECT_EQ(run(options).mass[1].num_rows, expected_rows(make_jobs(), 0, 900));
  EXPECT_NE(expected_rows(make_jobs(), 0, 900), expected_rows(make_jobs(), 0, 1));
  options.sparse.dense_layers = 1;
  const AuditedRun half = run(options);
  EXPECT_EQ(half.mass[0].num_rows, 0);
  EXPECT_FALSE(half.mass[0].captured.has_value());
  EXPECT_GT(half.mass[1].num_rows, 0);
}

// Masks are made, and all of their bits are set.
TEST(Audit, EverythingIsExactlyOne) {
  for (const PolicyCase& policy : kPolicies) {
    EngineOptions options = audited(policy);
    if (policy.options.slash_tokens) {
      options.sparse.slash_tokens = 2048;
    } else {
      options.sparse.min_budget_tokens = 2048;
    }
    for (const EngineOptions& way : {options, offloaded(options, KvOffload::kLayerwise)}) {
      for (const MassObservations& layer : run(way).mass) {
        EXPECT_GT(layer.num_rows, 0) << policy.name;
        EXPECT_EQ(layer.captured, 1.0) << policy.name;
        EXPECT_EQ(layer.standard_error, 0);
        EXPECT_EQ(layer.of_heads, std::vector<double>(kQHeads, 1.0));
      }
    }
  }
}

// Masks of more tiles hold those of fewer. Keys and queries of layer 0 depend on no mask.
TEST(Audit, MoreTilesCaptureMore) {
  double before = 0;
  for (const int32_t tiles : {1, 3, 6}) {
    EngineOptions options = audited(kPolicies[3]);
    options.sparse.topk_tokens = tiles * kTile;
    options.sparse.threshold_tokens = 8 * kTile;  // else the rule leaves out rows that see few
    const double captured = run(options).mass[0].captured.value_or(0);
    EXPECT_GT(captured, before) << tiles;
    before = captured;
  }
}

TEST(Audit, WhereKvLiesAndHowAPassIsCutDoesNotMatter) {
  for (const PolicyCase& policy : kPolicies) {
    const EngineOptions options = audited(policy);
    const AuditedRun reference = run(options);
    const std::string name = policy.name;
    expect_same_mass(run(in_chunks(options)), reference, name + ", chunks");
    expect_same_mass(run(offloaded(options, KvOffload::kLayerwise)), reference,
                     name + ", layer-wise");
    const AuditedRun chunked = run(offloaded(in_chunks(options), KvOffload::kChunked));
    expect_same_mass(chunked, reference, name + ", chunked");
    expect_all_same(chunked.outputs, reference.outputs, name + ", chunked");
    EngineOptions threads = options;
    threads.num_threads = 3;
    expect_same_mass(run(threads), reference, name + ", threads");
  }
}

TEST(Audit, ChangesNoTextAndOffItCostsNothing) {
  for (const PolicyCase& policy : kPolicies) {
    for (const KvOffload mode : {KvOffload::kOff, KvOffload::kLayerwise}) {
      EngineOptions with = audited(policy);
      if (mode != KvOffload::kOff) with = offloaded(with, mode);
      EngineOptions without = with;
      without.sparse.audit = false;
      const AuditedRun on = run(with);
      const AuditedRun off = run(without);
      expect_all_same(on.outputs, off.outputs, policy.name);
      EXPECT_GT(on.num_audits, 0);
      EXPECT_EQ(off.num_audits, 0);
      EXPECT_TRUE(off.mass.empty());
    }
  }
}

TEST(Audit, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  const auto selection_bytes = [](const EngineOptions& options) {
    LlmEngine engine(options, {.device = make_device("cpu", {.num_threads = 2})});
    EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
              engine.plan().memory.device_used_bytes());
    const int64_t before = engine.device().num_allocations();
    run_jobs(engine, make_jobs());
    EXPECT_EQ(engine.device().num_allocations(), before);
    const EnginePlan& plan = engine.plan();
    return make_policies(options)->memory(plan.kv_layout, plan.num_blocks, plan.policies);
  };
  for (const PolicyCase& policy : kPolicies) {
    const EngineOptions with = audited(policy);
    EngineOptions without = with;
    without.sparse.audit = false;
    const PolicyMemory on = selection_bytes(with);
    const PolicyMemory off = selection_bytes(without);
    EXPECT_GT(on.list_bytes, off.list_bytes);
    EXPECT_EQ(on.pinned_bytes - off.pinned_bytes,
              size_t{kLayers * (kAuditCounts + kQHeads)} * sizeof(int64_t));
  }
}

}  // namespace
}  // namespace sluice
