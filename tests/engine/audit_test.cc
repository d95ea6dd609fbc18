// sparse_audit: which rows count, what they say of masks whose mass is known, and that KV in host
// memory, chunks, neighbours and threads change neither the tallies nor, by them, any text. The
// mass of a row is checked in tests/ops/audit_mass_test.cc against double precision, what belongs
// to a request in request_audit_test.cc.
#include <gtest/gtest.h>

#include "engine/audited_engine.h"

namespace sluice {
namespace {

using testing::audited;
using testing::AuditedPolicy;
using testing::AuditedRun;
using testing::expect_all_same;
using testing::expect_same_mass;
using testing::expected_rows;
using testing::in_chunks;
using testing::Job;
using testing::kAuditedPolicies;
using testing::kTile;
using testing::offloaded;

constexpr int32_t kLayers = 2, kQHeads = 4;

std::vector<Job> make_jobs() { return testing::jobs_of({2000, 1500, 1025, 700, 70}); }

AuditedRun run(const EngineOptions& options) { return testing::run_audited(options, make_jobs()); }

TEST(Audit, CountsOneRowOfEachGroupInWholeTilesBeforeTheTail) {
  const int64_t expected = expected_rows(make_jobs(), 0, 1);
  ASSERT_GE(expected, 4);
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    const AuditedRun seen = run(audited(policy));
    ASSERT_EQ(seen.mass.size(), size_t{kLayers}) << policy.name;
    for (const MassObservations& layer : seen.mass) {
      EXPECT_EQ(layer.num_rows, expected) << policy.name;
      EXPECT_EQ(layer.num_skipped, 0);
      ASSERT_TRUE(layer.captured.has_value());
      EXPECT_LT(*layer.captured, 1) << policy.name;
      EXPECT_GT(*layer.captured, 0);
      EXPECT_GT(layer.standard_error.value_or(0), 0);
      EXPECT_EQ(layer.of_heads.size(), size_t{kQHeads});
    }
  }
}

TEST(Audit, RowsThatTheRuleMakesDenseDoNotCount) {
  EngineOptions options = audited(kAuditedPolicies[3]);
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
  for (const AuditedPolicy& policy : kAuditedPolicies) {
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
        EXPECT_EQ(layer.standard_error.value_or(0), 0);
        EXPECT_EQ(layer.of_heads, std::vector<double>(kQHeads, 1.0));
      }
    }
  }
}

// Masks of more tiles hold those of fewer. Keys and queries of layer 0 depend on no mask.
TEST(Audit, MoreTilesCaptureMore) {
  double before = 0;
  for (const int32_t tiles : {1, 3, 6}) {
    EngineOptions options = audited(kAuditedPolicies[3]);
    options.sparse.topk_tokens = tiles * kTile;
    options.sparse.threshold_tokens = 8 * kTile;  // else the rule leaves out rows that see few
    const double captured = run(options).mass[0].captured.value_or(0);
    EXPECT_GT(captured, before) << tiles;
    before = captured;
  }
}

TEST(Audit, WhereKvLiesAndHowAPassIsCutDoesNotMatter) {
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    const EngineOptions options = audited(policy);
    const AuditedRun reference = run(options);
    const std::string name = policy.name;
    expect_same_mass(run(offloaded(options, KvOffload::kLayerwise)).mass, reference.mass,
                     name + ", layer-wise");
    const AuditedRun cut = run(in_chunks(options));
    const AuditedRun chunked = run(offloaded(in_chunks(options), KvOffload::kChunked));
    expect_same_mass(chunked.mass, cut.mass, name + ", chunked");
    expect_all_same(chunked.outputs, cut.outputs, name + ", chunked");
    if (!testing::testing_cpu()) continue;  // passes of other heights
    expect_same_mass(cut.mass, reference.mass, name + ", chunks");
    expect_all_same(cut.outputs, reference.outputs, name + ", chunks");
    EngineOptions threads = options;
    threads.num_threads = 3;
    expect_same_mass(run(threads).mass, reference.mass, name + ", threads");
  }
}

TEST(Audit, ChangesNoTextAndOffItCostsNothing) {
  for (const AuditedPolicy& policy : kAuditedPolicies) {
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
    LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
    EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
              engine.plan().memory.device_used_bytes());
    const int64_t before = engine.device().num_allocations();
    testing::run_jobs(engine, make_jobs());
    EXPECT_EQ(engine.device().num_allocations(), before);
    const EnginePlan& plan = engine.plan();
    return make_policies(options)->memory(plan.kv_layout, plan.num_blocks, plan.policies);
  };
  for (const AuditedPolicy& policy : kAuditedPolicies) {
    EngineOptions with = audited(policy);
    with.max_num_seqs = 3;
    EngineOptions without = with;
    without.sparse.audit = false;
    const PolicyMemory on = selection_bytes(with);
    const PolicyMemory off = selection_bytes(without);
    EXPECT_GT(on.list_bytes, off.list_bytes);
    EXPECT_EQ(on.pinned_bytes - off.pinned_bytes,
              size_t{3 * kLayers * (kAuditCounts + kQHeads)} * sizeof(int64_t));
  }
}

}  // namespace
}  // namespace sluice
