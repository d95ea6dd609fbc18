// Prefill policies that score keys, with KV in host memory: keys come through the ring before the
// runs that are attended to. The bits are those of resident KV, for every size and number of slots,
// chunk, batch and prefix hit; and the link carries keys once for each window.
#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine/scoped_engine.h"
#include "support/hooked_device.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/seeds.h"
#include "support/source_dir.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::in_chunks;
using testing::Job;
using testing::offload_of;
using testing::random_tokens;
using testing::run_jobs;
using testing::run_scoped;
using testing::sampled;
using testing::scoped_engine;
using testing::scoped_offloaded;
using testing::scoped_resident;
using testing::ScopedPolicy;

constexpr int32_t kLayers = 2;
constexpr int32_t kBlock = 128;
constexpr int64_t kBlockBytes = kLayers * 2 * 2 * kBlock * 32 * int64_t{sizeof(BFloat16)};

// Windows of a scope, of two, and of whole chunks; and layers that score nothing.
const std::vector<ScopedPolicy::Options> kPolicies = {
    {.window_rows = 128}, {.window_rows = 256}, {.window_rows = 512, .dense_layers = 1}};

std::string describe(const ScopedPolicy::Options& policy) {
  return "windows of " + std::to_string(policy.window_rows);
}

std::vector<Job> scored_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {129, 385, 300, 470}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(6, length)});
  }
  return jobs;
}

EngineOptions chunked(int32_t chunk_tokens, int32_t pass_tokens, int32_t block_tokens = kBlock) {
  return in_chunks(scoped_offloaded(KvOffload::kChunked, block_tokens), chunk_tokens, pass_tokens);
}

// The comparisons below would prove nothing if no key changed a selection.
TEST(ScoredOffload, SelectionsDependOnKeysAndNotOnWindows) {
  const std::vector<Job> jobs = {scored_jobs().back()};
  const auto first_logprob = [&](const ScopedPolicy::Options& policy) {
    return run_scoped(scoped_resident(), policy, jobs)[0].logprobs[0][0].logprob;
  };
  EXPECT_NE(first_logprob({.window_rows = 128}), first_logprob({}));
  EXPECT_NE(first_logprob({.window_rows = 128, .dense_layers = 1}),
            first_logprob({.window_rows = 128}));
  expect_all_same(run_scoped(scoped_resident(), kPolicies[0], jobs),
                  run_scoped(scoped_resident(), kPolicies[1], jobs), "windows");
}

TEST(ScoredOffload, OffloadedEqualsResident) {
  const std::vector<Job> jobs = scored_jobs();
  for (const ScopedPolicy::Options& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_scoped(scoped_resident(), policy, jobs);
    for (const auto& [num_slots, slot_blocks] : {std::pair{2, 1}, {3, 2}, {8, 1}}) {
      for (const auto& [chunk, pass] : {std::pair{128, 128}, {256, 512}, {512, 512}}) {
        EngineOptions options = chunked(chunk, pass);
        options.kv.num_slots = num_slots;
        options.kv.slot_blocks = slot_blocks;
        expect_all_same(run_scoped(options, policy, jobs), reference,
                        describe(policy) + ", chunks of " + std::to_string(chunk) + ", " +
                            std::to_string(num_slots) + " slots");
      }
    }
    const EngineOptions whole = scoped_offloaded(KvOffload::kLayerwise, kBlock);
    expect_all_same(run_scoped(whole, policy, jobs), reference, describe(policy) + ", layerwise");
    expect_all_same(run_scoped(chunked(256, 512, 256), policy, jobs), reference,
                    describe(policy) + ", blocks of 256");
  }
}

// Blocks that stay are read in place; runs of them and of others alternate.
TEST(ScoredOffload, BlocksThatStayAreScoredInPlace) {
  const std::vector<Job> jobs = scored_jobs();
  const ScopedPolicy::Options& policy = kPolicies[0];
  const std::vector<RequestOutput> reference = run_scoped(scoped_resident(), policy, jobs);
  for (const int64_t num_blocks : {0, 1, 2, 100}) {
    EngineOptions options = chunked(128, 256);
    options.kv.slot_blocks = 2;
    options.kv.device_bytes = num_blocks * kBlockBytes;
    const auto engine = scoped_engine(options, policy);
    expect_all_same(run_jobs(*engine, jobs), reference, std::to_string(num_blocks) + " stay");
    const int64_t key_bytes = offload_of(*engine).counters().key_bytes;
    EXPECT_EQ(key_bytes == 0, num_blocks == 100) << num_blocks;
  }
}

// Blocks of a hit are history like any other, in chunks and layer by layer.
TEST(ScoredOffload, PrefixHitsEqualCold) {
  const std::vector<int32_t> first = random_tokens(470, 1);
  std::vector<int32_t> second = random_tokens(470, 2);
  std::copy_n(first.begin(), 300, second.begin());
  for (const ScopedPolicy::Options& policy : kPolicies) {
    const auto cold = run_scoped(scoped_resident(), policy, {{second, sampled(6, 2)}});
    for (const EngineOptions& options :
         {chunked(128, 128), scoped_offloaded(KvOffload::kLayerwise, kBlock)}) {
      const auto engine = scoped_engine(options, policy);
      run_jobs(*engine, {{first, sampled(4, 1)}});
      const std::vector<RequestOutput> warm = run_jobs(*engine, {{second, sampled(6, 2)}});
      EXPECT_EQ(warm[0].num_cached_tokens, 256);
      expect_all_same(warm, cold, describe(policy));
    }
  }
}

// A chunk loads the keys of its history once for each window, and then all of it. The guess of what
// the next chunk loads is right, so nothing is loaded in vain.
TEST(ScoredOffload, MovesExactlyTheBytesItMust) {
  constexpr int64_t kChunk = 256, kPrompt = 470;
  const std::vector<Job> jobs{{random_tokens(kPrompt, 1), sampled(1, 1)}};
  const std::vector<int64_t> windows = {2, 1, 1};  // of the second chunk, 214 rows
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    EngineOptions options = chunked(kChunk, kChunk);
    options.kv.num_slots = 8;  // for loads of all windows of a layer, and of the next layer
    const auto engine = scoped_engine(options, kPolicies[i]);
    run_jobs(*engine, jobs);
    const TransferCounters& counters = offload_of(*engine).counters();
    const int64_t history_bytes = kChunk / kBlock * kBlockBytes / kLayers;
    int64_t key_bytes = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const bool scores = layer >= kPolicies[i].dense_layers;
      const int64_t keys = scores ? windows[i] * history_bytes / 2 : 0;
      key_bytes += keys;
      EXPECT_EQ(counters.loaded_bytes[static_cast<size_t>(layer)], history_bytes + keys)
          << describe(kPolicies[i]) << ", layer " << layer;
    }
    EXPECT_EQ(counters.key_bytes, key_bytes);
    EXPECT_EQ(engine->observations().prefill.key_bytes, key_bytes);
  }
}

TEST(ScoredOffload, ScheduleOfStreamsDoesNotMatter) {
  const std::vector<Job> jobs = scored_jobs();
  for (const ScopedPolicy::Options& policy : kPolicies) {
    const std::vector<RequestOutput> reference = run_scoped(scoped_resident(), policy, jobs);
    for (const uint64_t seed : testing::test_seeds(5)) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const auto engine = scoped_engine(
          chunked(256, 512), policy,
          testing::make_hooked_device("cpu", {.num_threads = 2}, {.schedule_seed = seed}));
      expect_all_same(run_jobs(*engine, jobs), reference, describe(policy));
    }
  }
}

// A preempted sequence is a longer prompt, whose tail and last scope are elsewhere. With the same
// preemptions, offloaded and resident runs agree.
TEST(ScoredOffload, PreemptedAlikeEqualsResident) {
  std::vector<Job> jobs;
  for (const int64_t length : {240, 245, 250}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(60, length)});
  }
  const ScopedPolicy::Options policy{.tail_tokens = 30, .window_rows = 128};
  EngineOptions on_host = chunked(128, 128);
  on_host.max_model_len = 448;
  on_host.max_num_seqs = 3;
  on_host.kv.host_bytes = 7 * kBlockBytes;  // the prompts take six
  EngineOptions resident = on_host;
  resident.kv.offload = KvOffload::kOff;
  resident.kv.cache_bytes = on_host.kv.host_bytes;
  const auto a = scoped_engine(resident, policy), b = scoped_engine(on_host, policy);
  const std::vector<RequestOutput> reference = run_jobs(*a, jobs);
  EXPECT_GT(a->stats().num_preemptions, 0);
  expect_all_same(run_jobs(*b, jobs), reference, "preempted");
  EXPECT_EQ(a->stats().num_preemptions, b->stats().num_preemptions);
}

TEST(ScoredOffload, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  const auto engine = scoped_engine(chunked(256, 512), kPolicies[0]);
  EXPECT_EQ(engine->device().allocated_bytes(MemoryKind::kDevice),
            engine->plan().memory.device_used_bytes());
  const int64_t before = engine->device().num_allocations();
  run_jobs(*engine, scored_jobs());
  EXPECT_EQ(engine->device().num_allocations(), before);
}

// ---- The policies that the options name -------------------------------------------------------

struct Named {
  std::string name;
  int32_t scope_tokens = kBlock;
  bool has_columns = false;
  bool has_profile = false;
  std::optional<int32_t> two_stage_tokens = std::nullopt;
};

const std::vector<Named> kNamed = {{"sampled+full"},
                                   {"xattention+full"},
                                   {"avgpool+quest"},
                                   {"sampled+full", 512, true},
                                   {"sampled+full", kBlock, false, false, 3 * kBlock},
                                   {"sampled+full", 512, true, false, 600},
                                   {"minference+full", 512, true},
                                   {"minference+full", 512, true, true},
                                   {"flexprefill+full", 512, true}};

void PrintTo(const Named& policy, std::ostream* out) {
  *out << policy.name << (policy.has_columns ? " with columns" : "")
       << (policy.has_profile ? " and a profile" : "")
       << (policy.two_stage_tokens ? " in two stages" : "");
}

// As sparse as the rule of tiles allows, but for the prompt's last 50 rows.
EngineOptions named(EngineOptions options, const Named& policy) {
  options.model = testing::tiny_options("llama-group2-linear").model;  // of 2K tokens
  options.kv.block_size = kBlock;  // resident blocks are whole tiles, too
  SparseOptions& sparse = options.sparse;
  sparse.policy = policy.name;
  sparse.sink_tokens = sparse.recent_tokens = sparse.threshold_tokens = 0;
  sparse.tail_tokens = 50;
  if (policy.name.starts_with("avgpool")) {
    sparse.topk_tokens = kBlock;
  } else if (policy.name.starts_with("minference")) {
    sparse.segment_tokens = policy.scope_tokens;
    if (policy.has_profile) {
      sparse.profile = testing::source_dir() / "tests/fuzz/corpus/head_profile/mixed";
    } else {
      sparse.vertical_tokens = 60;
      sparse.slash_tokens = kBlock;
    }
  } else {
    sparse.coverage = 0.4;
  }
  sparse.two_stage_tokens = policy.two_stage_tokens;
  if (policy.name.starts_with("flexprefill")) {
    sparse.vertical_tokens = 60;
    sparse.min_budget_tokens = 0;
    sparse.segment_tokens = policy.scope_tokens;
  }
  if (policy.name.starts_with("sampled")) sparse.column_tokens = policy.has_columns ? 40 : 0;
  return options;
}

std::vector<RequestOutput> run_named(const EngineOptions& options, const Named& policy,
                                     const std::vector<Job>& jobs) {
  return testing::run_engine(named(options, policy), jobs);
}

class NamedPolicies : public ::testing::TestWithParam<Named> {};
INSTANTIATE_TEST_SUITE_P(ScoredOffload, NamedPolicies, ::testing::ValuesIn(kNamed));

TEST_P(NamedPolicies, GiveTheBitsOfResidentKv) {
  const Named& policy = GetParam();
  std::vector<Job> jobs;
  for (const int64_t length : {767, 70, 769, 1400}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(6, length)});
  }
  EngineOptions everything = named(scoped_resident(), kNamed[0]);
  everything.sparse.coverage = 1;
  const std::vector<RequestOutput> dense = testing::run_engine(everything, jobs);
  const std::vector<RequestOutput> reference = run_named(scoped_resident(), policy, jobs);
  EXPECT_NE(reference[3].logprobs[0][0].logprob, dense[3].logprobs[0][0].logprob);
  const int32_t scope = policy.scope_tokens;
  expect_all_same(run_named(in_chunks(scoped_resident(), scope, 2 * scope), policy, jobs),
                  reference, "resident in chunks");
  for (const int32_t num_slots : {2, 8}) {
    for (const auto& [chunk, pass] : {std::pair{scope, scope}, {2 * scope, 6 * scope}}) {
      EngineOptions options = chunked(chunk, pass);
      options.kv.num_slots = num_slots;
      expect_all_same(run_named(options, policy, jobs), reference,
                      "chunks of " + std::to_string(chunk));
    }
  }
  const EngineOptions whole = scoped_offloaded(KvOffload::kLayerwise, kBlock);
  expect_all_same(run_named(whole, policy, jobs), reference, "layerwise");
}

// Chunks of 256 tokens: the second scores 2 blocks of history and the third 4, twice if two stages
// score its rows.
TEST(ScoredOffload, KeysMoveOnceMoreWhereTwoStagesScoreThem) {
  const auto key_bytes = [](std::optional<int32_t> two_stage_tokens) {
    const Named policy{.name = "sampled+full", .two_stage_tokens = two_stage_tokens};
    LLM llm(named(chunked(256, 256), policy));
    run_jobs(llm, {{random_tokens(768, 1), sampled(1, 1)}});
    return llm.observations().prefill.key_bytes;
  };
  const int64_t once = key_bytes(std::nullopt);
  EXPECT_GT(once, 0);
  EXPECT_EQ(key_bytes(512) * (2 + 4), once * (2 + 2 * 4));
  EXPECT_EQ(key_bytes(768), once) << "no row is there";
}

// Two walks load the keys of the history, which is as much as attention loads; the walk that copies
// columns loads nothing.
TEST(ScoredOffload, ColumnsAreReadInTheHostTier) {
  const Named policy{.name = "sampled+full", .scope_tokens = 512, .has_columns = true};
  LLM llm(named(chunked(512, 512), policy));
  run_jobs(llm, {{random_tokens(1024, 1), sampled(1, 1)}});
  const PhaseObservations prefill = llm.observations().prefill;
  int64_t h2d_bytes = 0;
  for (const LayerObservations& layer : prefill.layers) h2d_bytes += layer.h2d_bytes;
  EXPECT_GT(prefill.key_bytes, 0);
  EXPECT_EQ(h2d_bytes, 2 * prefill.key_bytes);
}

TEST_P(NamedPolicies, HitWhatTheyComputedCold) {
  const Named& policy = GetParam();
  const std::vector<int32_t> first = random_tokens(900, 1);
  std::vector<int32_t> second = random_tokens(1000, 2);
  std::copy_n(first.begin(), 700, second.begin());
  const Job job{second, sampled(6, 2)};
  const std::vector<RequestOutput> cold = run_named(scoped_resident(), policy, {job});
  const int32_t chunk = std::max(256, policy.scope_tokens);
  for (const EngineOptions& options : {scoped_resident(), chunked(chunk, chunk),
                                       scoped_offloaded(KvOffload::kLayerwise, kBlock)}) {
    LLM llm(named(options, policy));
    run_jobs(llm, {{first, sampled(4, 1)}});
    const std::vector<RequestOutput> warm = run_jobs(llm, {job});
    EXPECT_EQ(warm[0].num_cached_tokens, 700 / policy.scope_tokens * policy.scope_tokens);
    expect_all_same(warm, cold, "after a hit");
  }
}

}  // namespace
}  // namespace sluice
