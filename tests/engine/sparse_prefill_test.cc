// Prefill policies that attend by tiles, in the engine: the same bits for every place of KV, batch,
// chunk and block size, and the bits of full attention where the options ask for everything.
//
// The reference of a policy is the same policy with resident KV. That it differs from full
// attention is tested too, since otherwise the comparisons would prove nothing. On a GPU all runs
// have one sequence in a pass, since passes of another height round differently there, and a tile
// next to the cut may be chosen in one of them only.
#include <algorithm>

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/llm_engine.h"
#include "engine/trace.h"
#include "support/hooked_device.h"
#include "support/run_bits.h"
#include "support/sanitizer.h"
#include "support/seeds.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;

constexpr const char* kModel =
    "llama-group2-linear";  // 2 layers, 4 query and 2 KV heads, 2K tokens
constexpr int32_t kTile = 128, kLayers = 2, kKvHeads = 2;

struct PolicyCase {
  const char* prefill;
  const char* decode;
  SparseOptions options;
  int32_t scope = kTile;  // chunks are multiples of it

  std::string name() const { return std::string(prefill) + "+" + decode; }
};

// Nothing is attended by the rule alone but the diagonal.
SparseOptions bare(SparseOptions options) {
  options.sink_tokens = options.recent_tokens = 0;
  options.threshold_tokens = 0;
  options.tail_tokens = 1;
  return options;
}

const std::vector<PolicyCase> kAllPolicies = {
    {"sampled", "full", bare({.coverage = 0.5, .column_tokens = 0})},
    {"sampled", "quest",
     bare({.topk_tokens = 64, .shared_list = true, .coverage = 0.5, .column_tokens = 0})},
    {"sampled", "full", bare({.coverage = 0.4, .column_tokens = 20}), 4 * kTile},
    {"sampled", "full", bare({.coverage = 0.7, .two_stage_tokens = 2 * kTile, .column_tokens = 0})},
    {"sampled", "quest",
     bare({.topk_tokens = 64, .coverage = 0.6, .two_stage_tokens = 300, .column_tokens = 20}),
     4 * kTile},
    {"minference", "full",
     bare({.segment_tokens = 2 * kTile, .vertical_tokens = 40, .slash_tokens = 2 * kTile}),
     2 * kTile},
    {"minference", "quest",
     bare({.topk_tokens = 64,
           .shared_list = true,
           .segment_tokens = 2 * kTile,
           .vertical_tokens = 200,
           .slash_tokens = 3 * kTile}),
     2 * kTile},
    {"minference", "full", bare({.segment_tokens = 2 * kTile, .adaptive_budget = 0.3}), 2 * kTile},
    {"minference", "full",
     bare({.segment_tokens = 2 * kTile,
           .profile = testing::source_dir() / "tests/fuzz/corpus/head_profile/mixed"}),
     2 * kTile},
    {"flexprefill", "full",
     bare({.coverage = 0.4,
           .min_budget_tokens = 0,
           .segment_tokens = 2 * kTile,
           .vertical_tokens = 40,
           .divergence = 0.0}),
     2 * kTile},
    {"flexprefill", "quest",
     bare({.topk_tokens = 64,
           .coverage = 0.4,
           .min_budget_tokens = 0,
           .segment_tokens = 2 * kTile,
           .vertical_tokens = 200,
           .divergence = 0.1}),
     2 * kTile},
    {"flexprefill", "full",
     bare({.shared_list = true,
           .coverage = 0.4,
           .min_budget_tokens = 2 * kTile,
           .segment_tokens = 3 * kTile,
           .divergence = 0.1}),
     3 * kTile},
    {"xattention", "full", bare({.coverage = 0.5, .stride = 8})},
    {"xattention", "quest", bare({.topk_tokens = 64, .coverage = 0.5})},
    {"avgpool", "full", bare({.topk_tokens = 256})},
    {"avgpool", "quest", bare({.topk_tokens = 64, .coverage = 0.5})},
    {"avgpool",
     "streaming",
     {.sink_tokens = 0, .threshold_tokens = 0, .alpha = 0.999, .tail_tokens = 200}},
};

// Under ThreadSanitizer every second one: each policy remains, and all have the same streams.
const std::vector<PolicyCase> kPolicies = [] {
  std::vector<PolicyCase> some;
  for (size_t i = 0; i < kAllPolicies.size(); i += kThreadSanitized ? 2 : 1) {
    some.push_back(kAllPolicies[i]);
  }
  return some;
}();

EngineOptions resident(const PolicyCase& policy, const std::string& name) {
  EngineOptions options = testing::tiny_options(kModel);
  options.kv.block_size = kTile;
  options.max_num_batched_tokens = 4096;  // all prompts of make_jobs
  if (!testing::testing_cpu()) options.max_num_seqs = 1;
  options.sparse = policy.options;
  options.sparse.policy = name;
  return options;
}

EngineOptions resident(const PolicyCase& policy) { return resident(policy, policy.name()); }

// The same decode, and everything in prefill.
EngineOptions full_prefill(const PolicyCase& policy) {
  EngineOptions options = resident(policy, std::string("full+") + policy.decode);
  const bool is_full = std::string(policy.decode) == "full";
  SparseOptions decode{.policy = options.sparse.policy};
  if (!is_full) {
    decode.sink_tokens = policy.options.sink_tokens;
    decode.recent_tokens = policy.options.recent_tokens;
    decode.threshold_tokens = policy.options.threshold_tokens;
  }
  if (std::string(policy.decode) == "quest") {
    decode.topk_tokens = policy.options.topk_tokens;
    decode.shared_list = policy.options.shared_list;
  }
  options.sparse = decode;
  return options;
}

EngineOptions layerwise(EngineOptions options, int32_t num_slots = 2) {
  options.kv.offload = KvOffload::kLayerwise;
  options.kv.host_bytes = 16 << 20;
  options.kv.num_slots = num_slots;
  options.kv.slot_blocks = 1;
  return options;
}

// Prompts around borders of tiles; the decoded tokens cross a border as well.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {6 * kTile - 1, 6 * kTile, 6 * kTile + 1, 1000, 70}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  return jobs;
}

bool same_text(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const auto& x, const auto& y) { return x.token_ids == y.token_ids; });
}

TEST(SparsePrefill, AFewTilesAreNotFullAttention) {
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    EXPECT_FALSE(
        same_text(run_engine(resident(policy), jobs), run_engine(full_prefill(policy), jobs)))
        << policy.name();
  }
}

// Each way to ask for everything, with resident and with offloaded KV.
TEST(SparsePrefill, EverythingIsFullAttention) {
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    const std::vector<RequestOutput> full = run_engine(full_prefill(policy), jobs);
    std::vector<EngineOptions> ways(4, resident(policy));
    // Has neither a least budget nor a coverage; topk is the decode policy's.
    const bool is_minference = std::string(policy.prefill) == "minference";
    if (policy.options.slash_tokens) {
      ways[0].sparse.slash_tokens = 2048;
    } else if (is_minference) {
      ways[0].sparse.sink_tokens = 2048;
    } else {
      ways[0].sparse.min_budget_tokens = 2048;
    }
    ways[1].sparse.dense_layers = kLayers;
    ways[2].sparse.tail_tokens = 2048;
    if (policy.options.coverage) {
      ways[3].sparse.coverage = 1;
    } else if (policy.options.topk_tokens) {
      ways[3].sparse.topk_tokens = 2048;
    }
    // In a pair these are options of decode, too.
    if (std::string(policy.decode) == "full") {
      ways.resize(6, resident(policy));
      ways[4].sparse.threshold_tokens = 2048;
      ways[5].sparse.recent_tokens = 2048;
    }
    for (size_t i = 0; i < ways.size(); i += kThreadSanitized ? 3 : 1) {
      // Way 3 is for a coverage or a number: no share of the heaviest tile is everything.
      if (i == 3 && !policy.options.coverage && !policy.options.topk_tokens) continue;
      if (i == 3 && is_minference) continue;
      const std::string what = policy.name() + ", way " + std::to_string(i);
      expect_all_same(run_engine(ways[i], jobs), full, what);
      expect_all_same(run_engine(layerwise(ways[i]), jobs), full, what + ", layer-wise");
    }
  }
}

TEST(SparsePrefill, LayerwiseEqualsResident) {
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_engine(resident(policy), jobs);
    for (const int32_t num_slots : {2, 8}) {
      expect_all_same(run_engine(layerwise(resident(policy), num_slots), jobs), reference,
                      policy.name() + ", slots " + std::to_string(num_slots));
    }
  }
}

// Neighbours, threads, and chunks that end at scopes.
TEST(SparsePrefill, HowAPassIsCutDoesNotMatter) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: passes of other heights, as said above";
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_engine(resident(policy), jobs);
    EngineOptions alone = resident(policy);
    alone.max_num_seqs = 1;
    alone.num_threads = 3;
    expect_all_same(run_engine(alone, jobs), reference, policy.name() + ", alone");
    for (const int32_t chunk : {policy.scope, 3 * policy.scope}) {
      EngineOptions cut = alone;
      cut.prefill_chunk_tokens = cut.max_num_batched_tokens = chunk;
      expect_all_same(run_engine(cut, jobs), reference,
                      policy.name() + ", chunks of " + std::to_string(chunk));
    }
  }
}

// On a GPU a decode step sums over windows of gcd(block_size, 256) tokens: the same for both sizes.
TEST(SparsePrefill, BlockSizesDoNotMatter) {
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    EngineOptions blocks = resident(policy);
    blocks.kv.block_size = 3 * kTile;
    expect_all_same(run_engine(blocks, jobs), run_engine(resident(policy), jobs), policy.name());
  }
}

// Nothing of a request stays in the policy.
TEST(SparsePrefill, OneAfterTheOtherEqualsAFreshEngine) {
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    EngineOptions options = resident(policy);
    options.enable_prefix_caching = false;
    LlmEngine engine(options, {.device = testing::make_test_device()});
    for (int round = 0; round < 2; ++round) {
      for (const Job& job : jobs) {
        expect_all_same(run_jobs(engine, {job}), run_engine(resident(policy), {job}),
                        policy.name());
      }
    }
  }
}

TEST(SparsePrefill, ReplayedDecodeStepsEqualOthers) {
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    LlmEngine engine(resident(policy), {.device = testing::make_test_device(),
                                        .adjust_plan = testing::forced_graphs(resident(policy))});
    expect_all_same(run_jobs(engine, jobs), run_engine(resident(policy), jobs), policy.name());
    EXPECT_GT(engine.stats().num_graph_launches, 0) << policy.name();
  }
}

TEST(SparsePrefill, ScheduleOfStreamsDoesNotMatter) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: offload_test delays a GPU's streams";
  const std::vector<Job> jobs = make_jobs();
  for (const PolicyCase& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_engine(resident(policy), jobs);
    for (const uint64_t seed : testing::test_seeds(2)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      auto device = testing::make_hooked_device("cpu", {.num_threads = 2}, {.schedule_seed = seed});
      LlmEngine engine(layerwise(resident(policy)), {.device = std::move(device)});
      expect_all_same(run_jobs(engine, jobs), reference, policy.name());
    }
  }
}

TEST(SparsePrefill, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  for (const PolicyCase& policy : kPolicies) {
    for (const EngineOptions& options : {resident(policy), layerwise(resident(policy))}) {
      LlmEngine engine(options, {.device = testing::make_test_device()});
      EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
                engine.plan().memory.device_used_bytes());
      const int64_t before = engine.device().num_allocations();
      run_jobs(engine, make_jobs());
      EXPECT_EQ(engine.device().num_allocations(), before) << policy.name();
    }
  }
}

TEST(SparsePrefill, BlocksThatAreNoWholeTilesAreRefused) {
  for (const int32_t block_size : {16, 192}) {
    EngineOptions options = resident(kPolicies[0]);
    options.kv.block_size = block_size;
    try {
      LlmEngine engine(options, {.device = testing::make_test_device()});
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("take a multiple of 128"), std::string::npos)
          << error.message();
    }
  }
}

// ---- What is reported ---------------------------------------------------------------------------

// Visible tiles of one layer and one mask: i + 1 for query tile i.
int64_t visible_tiles(int64_t num_tokens) {
  const int64_t tiles = mask_tiles_of(num_tokens);
  return tiles * (tiles + 1) / 2;
}

PhaseObservations prefill_of(const EngineOptions& options, const std::vector<Job>& jobs) {
  LlmEngine engine(options, {.device = testing::make_test_device()});
  run_jobs(engine, jobs);
  return engine.observations().prefill;
}

TEST(SparsePrefill, TilesAreCounted) {
  const std::vector<Job> jobs = {make_jobs()[3], make_jobs()[4]};
  const int64_t visible = kLayers * kKvHeads * (visible_tiles(1000) + visible_tiles(70));
  // One tile beside the diagonal, and the last query tile, which sees eight.
  const int64_t set = kLayers * kKvHeads * (1 + 2 * 6 + 8 + 1);
  EngineOptions options = resident({"avgpool", "full", bare({.topk_tokens = kTile})});
  for (const EngineOptions& place : {options, layerwise(options)}) {
    const PhaseObservations seen = prefill_of(place, jobs);
    EXPECT_EQ(seen.num_tiles_visible, visible);
    EXPECT_EQ(seen.num_tiles_set, set);
    EXPECT_EQ(seen.num_tiles_cut, 0);
    EXPECT_EQ(seen.density_selected, static_cast<double>(set) / static_cast<double>(visible));
    for (const LayerObservations& layer : seen.layers) {
      EXPECT_EQ(layer.density_selected, seen.density_selected);
    }
    EXPECT_EQ(seen.num_sequence_steps, 2);
    EXPECT_EQ(seen.num_fallbacks, 1) << "a prompt of one tile";
    EXPECT_EQ(seen.num_full_rows, kTile + 70) << "the first tile, and that prompt";
  }
}

// The device counts the tiles of these passes, too.
TEST(SparsePrefill, TracesAndScoresAreCountedAsRequestsAre) {
  EngineOptions options = layerwise(resident({"avgpool", "full", bare({.topk_tokens = kTile})}));
  options.max_num_seqs = 1000;  // one pass
  const std::vector<int32_t> tokens = make_jobs()[3].prompt;
  const PhaseObservations wanted = prefill_of(options, {make_jobs()[3]});
  LlmEngine engine(options, {.device = testing::make_test_device()});
  TraceRecorder recorder({}, engine.device());
  engine.solo().trace(tokens, recorder);
  engine.solo().score(tokens, {});
  const PhaseObservations seen = engine.observations().prefill;
  EXPECT_EQ(seen.num_steps, 2 * wanted.num_steps);
  EXPECT_EQ(seen.num_tokens, 2 * wanted.num_tokens);
  EXPECT_EQ(seen.num_tiles_visible, 2 * wanted.num_tiles_visible);
  EXPECT_EQ(seen.num_tiles_set, 2 * wanted.num_tiles_set);
  for (size_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(seen.layers[layer].d2h_bytes, 2 * wanted.layers[layer].d2h_bytes);
  }
}

// A layer without masks attends to everything, and a prompt before the threshold does.
TEST(SparsePrefill, WhatNeedsNoMaskIsCountedAsRead) {
  const std::vector<Job> jobs = {make_jobs()[3]};
  EngineOptions options = resident({"avgpool", "full", bare({.topk_tokens = kTile})});
  options.sparse.dense_layers = 1;
  const PhaseObservations half = prefill_of(layerwise(options), jobs);
  ASSERT_EQ(half.layers.size(), 2u);
  EXPECT_EQ(half.layers[0].density_selected, 1.0);
  EXPECT_EQ(half.layers[1].density_selected, 21.0 / 36);
  EXPECT_EQ(half.num_tiles_set, kKvHeads * (36 + 21));

  options.sparse.threshold_tokens = 1000;
  const PhaseObservations none = prefill_of(options, jobs);
  EXPECT_EQ(none.density_selected, 1.0);
  EXPECT_EQ(none.num_tiles_set, none.num_tiles_visible);
  EXPECT_EQ(none.num_fallbacks, 1);
}

TEST(SparsePrefill, TilesThatABudgetCutsOffAreCounted) {
  const std::vector<Job> jobs = {make_jobs()[3]};
  EngineOptions options = resident({"avgpool", "full", bare({.topk_tokens = 2 * kTile})});
  options.sparse.max_budget_tokens = 2 * kTile;
  // Query tiles 2 to 6 choose two tiles beside the diagonal; one of them is cut off. The others
  // attend to everything by the rule.
  const PhaseObservations seen = prefill_of(options, jobs);
  EXPECT_EQ(seen.num_tiles_cut, kLayers * kKvHeads * 5);
}

}  // namespace
}  // namespace sluice
