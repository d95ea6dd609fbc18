// The prefix cache of hybrids: an answer that goes on from a snapshot of the states has the bits of
// one that is computed from the first token on, whatever happened to the snapshots before; and it
// does go on from one, as far as the number of cached tokens says.
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/llm_engine.h"
#include "engine/scoped_engine.h"
#include "sluice/inspect.h"
#include "sluice/llm.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::before_answer;
using testing::branch;
using testing::Compared;
using testing::Job;
using testing::joined;
using testing::kHybrid;
using testing::random_tokens;
using testing::run_jobs;
using testing::sampled;
using testing::snapshot_bytes;
using testing::tiny_options;
using testing::Tokens;
using testing::whole;

constexpr int64_t kBlock = testing::kHybridBlock;

// One of each kind; a GPU has no kernel for the experts of the tiny ones.
std::vector<const char*> snapshot_models() {
  if (!testing::testing_cpu()) return {"qwen35-hybrid-nested", "qwen35-hybrid-wide"};
  return {"qwen3next-hybrid-experts6", "qwen35-hybrid-nested", "qwen35-hybrid-wide",
          "qwen35moe-hybrid-experts8"};
}

// ---- Where sequences go on ---------------------------------------------------------------------

struct Place {
  const char* model;
  const char* mode;
};

class Snapshots : public ::testing::TestWithParam<Place> {
 protected:
  static EngineOptions options() {
    const EngineOptions resident = tiny_options(GetParam().model);
    const KvOffload mode = testing::kv_offload_named(GetParam().mode);
    return mode == KvOffload::kOff ? resident : testing::with_offload(resident, mode);
  }
};

std::vector<Place> all_places() {
  std::vector<Place> places;
  for (const char* model : snapshot_models()) {
    for (const char* mode : {"off", "chunked", "layerwise"}) places.push_back({model, mode});
  }
  return places;
}

INSTANTIATE_TEST_SUITE_P(Models, Snapshots, ::testing::ValuesIn(all_places()),
                         [](const auto& made) {
                           std::string name = std::string(made.param.model) + "_" + made.param.mode;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(Snapshots, ASecondTurnGoesOnFromTheEndOfTheFirst) {
  Compared compared(options());
  LLM llm(options());
  const Tokens prompt = random_tokens(200, 1);
  const std::vector<RequestOutput> first = run_jobs(llm, {{prompt, sampled(40, 2)}});
  compared.expect_same({{prompt, sampled(40, 2)}}, first, "first turn");
  EXPECT_EQ(first[0].num_cached_tokens, 0);
  // Of 200 + 40 tokens the newest has no KV.
  const Tokens second = joined(joined(prompt, first[0].token_ids), random_tokens(50, 3));
  EXPECT_EQ(compared.cached(llm, second, "second turn"), whole(239));
  // A turn that drops the answer, and of the prompt what only introduced it.
  const Tokens dropped = branch(prompt, 195, 60, 4);
  EXPECT_EQ(compared.cached(llm, dropped, "dropped thought"), before_answer(200));
  // The turn before differed there, where KV is cached: now a state is, too.
  EXPECT_EQ(compared.cached(llm, prompt, "the same again"), whole(195));
  EXPECT_EQ(llm.stats().num_cached_tokens, whole(239) + before_answer(200) + whole(195));
}

TEST_P(Snapshots, ABranchLeavesOneForTheNext) {
  Compared compared(options());
  LLM llm(options());
  const Tokens prompt = random_tokens(230, 1);
  compared.cached(llm, prompt, "first");
  EXPECT_EQ(compared.cached(llm, branch(prompt, 100, 90, 2), "second"), 0) << "no state is there";
  EXPECT_EQ(compared.cached(llm, branch(prompt, 100, 80, 3), "third"), whole(100));
  EXPECT_EQ(compared.cached(llm, branch(prompt, 100, 0, 0), "no more"), whole(99));
}

TEST_P(Snapshots, AreTakenAtEveryBlockIfWanted) {
  EngineOptions dense = options();
  dense.state_cache.snapshot_tokens = kBlock;
  Compared compared(dense);
  const Tokens prompt = random_tokens(130, 1);
  for (const int64_t num_shared : {1, 15, 16, 17, 31, 32, 48, 64, 100, 127, 128, 130}) {
    LLM llm(dense);
    compared.cached(llm, prompt, "first");
    EXPECT_EQ(compared.cached(llm, branch(prompt, num_shared, 9, 2), std::to_string(num_shared)),
              whole(num_shared));
  }
}

// ---- What must not be used ---------------------------------------------------------------------

TEST(SnapshotUse, AnEditedBeginningUsesNone) {
  Compared compared(tiny_options(kHybrid));
  LLM llm(tiny_options(kHybrid));
  Tokens prompt = random_tokens(200, 1);
  compared.cached(llm, prompt, "first");
  prompt[3] = prompt[3] == 7 ? 8 : 7;
  EXPECT_EQ(compared.cached(llm, prompt, "edited"), 0);
}

TEST(SnapshotUse, SaltsShareNone) {
  Compared compared(tiny_options(kHybrid));
  LLM llm(tiny_options(kHybrid));
  Job job{random_tokens(200, 1), sampled(10, 1)};
  for (const char* salt : {"", "a", "b"}) {
    job.params.cache_salt = salt;
    EXPECT_EQ(compared.cached(llm, job, salt), 0) << salt;
    EXPECT_EQ(compared.cached(llm, job, salt), before_answer(200)) << salt;
  }
}

TEST(SnapshotUse, ScoredPromptsAreComputed) {
  Compared compared(tiny_options(kHybrid));
  LLM llm(tiny_options(kHybrid));
  Job job{random_tokens(100, 1), sampled(10, 1)};
  compared.cached(llm, job, "first");
  job.params.prompt_logprobs = 2;
  const RequestOutput scored = run_jobs(llm, {job})[0];
  EXPECT_EQ(scored.num_cached_tokens, 0);
  EXPECT_EQ(scored.prompt_logprobs.size(), 100u);
}

// A policy that selects for 128 rows together, and for the last 20 differently: snapshots are where
// hits may end, and none is where KV depends on the end of its prompt.
TEST(SnapshotUse, PlacesAreEndsOfScopes) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: the policy's tiles are made on a CPU";
  const testing::ScopedPolicy::Options policy{.scope_tokens = 128, .tail_tokens = 20};
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    EngineOptions options = tiny_options(kHybrid);
    if (mode != KvOffload::kOff) options = testing::with_offload(options, mode);
    options.prefill_chunk_tokens = options.max_num_batched_tokens = 128;
    options.state_cache.snapshot_tokens = kBlock;
    EngineOptions plain = options;
    plain.state_cache = {};
    plain.enable_prefix_caching = false;
    const Tokens prompt = random_tokens(400, 1);
    const auto engine = testing::scoped_engine(options, policy);
    for (const int64_t num_shared : {400, 399, 276, 275, 160, 148, 147, 40}) {
      const Job job{branch(prompt, num_shared, 0, 0), sampled(20, 1)};
      const std::vector<RequestOutput> outputs = run_jobs(*engine, {job});
      testing::expect_all_same(outputs, testing::run_scoped(plain, policy, {job}),
                               std::to_string(num_shared));
      // Whole scopes before the tail, also of the first prompt.
      const int64_t expected = num_shared == 400 ? 0 : (num_shared - 20) / 128 * 128;
      EXPECT_EQ(outputs[0].num_cached_tokens, std::max<int64_t>(expected, 0)) << num_shared;
    }
  }
}

// ---- Memory ------------------------------------------------------------------------------------

TEST(SnapshotMemory, FewPlacesChangeNoBit) {
  EngineOptions options = tiny_options(kHybrid);
  options.state_cache.snapshot_tokens = kBlock;
  for (const int64_t num_places : {1, 2, 3, 5}) {
    options.state_cache.max_bytes = static_cast<size_t>(num_places * snapshot_bytes());
    Compared compared(options);
    LLM llm(options);
    int64_t num_cached = 0;
    for (uint64_t i = 0; i < 12; ++i) {
      const Tokens text = random_tokens(220, i / 4);
      num_cached += compared.cached(llm, branch(text, 40 + 15 * static_cast<int64_t>(i), 30, i),
                                    std::to_string(num_places) + " places, " + std::to_string(i));
    }
    EXPECT_TRUE(num_cached > 0 || num_places < 3) << num_places;
    // The same again finds the deepest, also where there is one place alone.
    const Tokens prompt = random_tokens(220, 50);
    compared.cached(llm, {prompt, sampled(1, 1)}, "first");
    EXPECT_EQ(compared.cached(llm, prompt, "again"), whole(219)) << num_places;
  }
}

TEST(SnapshotMemory, GoesWithItsBlocks) {
  EngineOptions options = tiny_options(kHybrid);
  options.max_model_len = 256;
  const MemoryPlan plan = plan_memory(options);
  options.kv.cache_bytes =
      *options.kv.cache_bytes / static_cast<size_t>(plan.num_blocks) * 20;  // 320 tokens
  Compared compared(options);
  LlmEngine engine(options, {.device = testing::make_test_device()});
  const Job first{random_tokens(150, 1), sampled(10, 1)};
  const Job other{random_tokens(230, 2), sampled(10, 1)};
  compared.expect_same({first}, run_jobs(engine, {first}), "first");
  // Before the end of the prompt; the answer fills no block.
  EXPECT_EQ(engine.kv().snapshots().table().size(), 2);
  compared.expect_same({other}, run_jobs(engine, {other}), "other");
  EXPECT_EQ(engine.kv().snapshots().table().size(), 2) << "those of the first are gone";
  const std::vector<RequestOutput> again = run_jobs(engine, {first});
  compared.expect_same({first}, again, "again");
  EXPECT_EQ(again[0].num_cached_tokens, 0)
      << "its last blocks were evicted, and the state with them";
  EXPECT_EQ(engine.kv().snapshots().table().num_evicted(), 0);
}

TEST(SnapshotMemory, IsPlannedAndTaken) {
  const EngineOptions options = tiny_options(kHybrid);
  const auto planned = [](const EngineOptions& o) {
    size_t bytes = 0;
    for (const MemoryPlanEntry& entry : plan_memory(o).entries) {
      if (entry.name == "snapshots of states") bytes = entry.bytes;
    }
    return static_cast<int64_t>(bytes);
  };
  // Four for each of 16 sequences, and one for each interval that the cache has room for.
  const int64_t num_tokens = plan_memory(options).num_blocks * kBlock;
  EXPECT_EQ(planned(options), (64 + num_tokens / 16384) * snapshot_bytes());
  EngineOptions changed = options;
  changed.state_cache.max_bytes = static_cast<size_t>(5 * snapshot_bytes() + 1);
  EXPECT_EQ(planned(changed), 5 * snapshot_bytes());
  const LlmEngine engine(changed, {.device = testing::make_test_device()});
  EXPECT_EQ(engine.plan().snapshots.num_places, 5);
  if (testing::testing_cpu()) {  // a GPU pins what it stages copies in, too
    EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kPinned),
              engine.plan().memory.pinned_used_bytes());
  }
  changed.state_cache.max_bytes = static_cast<size_t>(snapshot_bytes() - 1);
  EXPECT_EQ(planned(changed), 0);
}

// ---- Beside others -----------------------------------------------------------------------------

TEST(SnapshotSharing, EqualPromptsAtOnceAreComputedOnce) {
  for (const int64_t length : {70, 150, 64}) {
    Compared compared(tiny_options(kHybrid));
    LLM llm(tiny_options(kHybrid));
    std::vector<Job> jobs;
    for (int64_t i = 0; i < 6; ++i) jobs.push_back({random_tokens(length, 3), sampled(20, i)});
    const std::vector<RequestOutput> outputs = run_jobs(llm, jobs);
    compared.expect_same(jobs, outputs, std::to_string(length));
    EXPECT_EQ(outputs[0].num_cached_tokens, 0);
    for (size_t i = 1; i < jobs.size(); ++i) {
      EXPECT_EQ(outputs[i].num_cached_tokens, whole(length - 1)) << length << ", job " << i;
    }
  }
}

TEST(SnapshotSharing, ACommonBeginningIsComputedFewTimes) {
  EngineOptions options = tiny_options(kHybrid);
  options.prefill_chunk_tokens = 32;
  Compared compared(options);
  LLM llm(options);
  const Tokens common = random_tokens(100, 1);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 6; ++i) {
    jobs.push_back({branch(common, 100, 30 + 7 * static_cast<int64_t>(i), i), sampled(20, 1)});
  }
  const std::vector<RequestOutput> outputs = run_jobs(llm, jobs);
  compared.expect_same(jobs, outputs, "at once");
  int64_t num_cached = 0;
  for (const RequestOutput& output : outputs) num_cached += output.num_cached_tokens;
  EXPECT_EQ(num_cached, 5 * whole(100));
}

TEST(SnapshotSharing, TheHundredthRequestHasTheBitsOfTheFirst) {
  EngineOptions options = tiny_options(kHybrid);
  options.max_num_seqs = 3;
  options.state_cache.max_bytes = static_cast<size_t>(7 * snapshot_bytes());
  Compared compared(options);
  LLM llm(options);
  const Job job{random_tokens(90, 1), sampled(10, 1)};
  compared.expect_same({job}, run_jobs(llm, {job}), "first");
  for (uint64_t i = 0; i < 30; ++i) {
    const Tokens text = random_tokens(200, i % 4);
    const std::vector<Job> jobs{{branch(text, 60 + static_cast<int64_t>(i), 20, i), sampled(5, 1)},
                                {branch(text, 3, 0, i), sampled(7, 1)},
                                {branch(text, 48, 33, i), sampled(2, 1)}};
    compared.expect_same(jobs, run_jobs(llm, jobs), "round " + std::to_string(i));
  }
  compared.expect_same({job}, run_jobs(llm, {job}), "after 90 others");
  EXPECT_GT(llm.stats().num_cached_tokens, 0);
}

// The bytes of a state that a cancelled pass has written reach no snapshot.
TEST(SnapshotSharing, ACancelledPassLeavesNone) {
  EngineOptions options = tiny_options(kHybrid);
  options.state_cache.snapshot_tokens = 64;
  Compared compared(options);
  const Tokens prompt = random_tokens(200, 4);
  const Job job{prompt, sampled(6, 1)};
  for (int num_parts = 0; num_parts < 8; ++num_parts) {
    LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
    int num_heard = 0, num_given_up = 0;
    const PassWatch watch{.on_progress = [&](int64_t) { ++num_heard; },
                          .should_cancel =
                              [&] {
                                if (num_given_up == 3 || num_heard < num_parts) return false;
                                num_heard = 0;
                                return ++num_given_up > 0;
                              }};
    const SequenceId id = engine.add_request(job.prompt, job.params);
    for (int i = 0; i < 3 && num_given_up == 0; ++i) engine.step(&watch);
    EXPECT_GT(num_given_up, 0) << num_parts;
    engine.drop_request(id);
    const std::vector<Job> jobs{{branch(prompt, 150, 20, 1), sampled(20, 1)}, job};
    compared.expect_same(jobs, run_jobs(engine, jobs), std::to_string(num_parts) + " parts");
  }
}

TEST(SnapshotSharing, PreemptionGoesOnFromTheDeepest) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 5; ++i) {
    jobs.push_back({random_tokens(60, i), sampled(50, static_cast<int64_t>(i))});
  }
  EngineOptions options = tiny_options(kHybrid);
  Compared compared(options);
  const MemoryPlan plan = plan_memory(options);
  options.kv.cache_bytes = *options.kv.cache_bytes / static_cast<size_t>(plan.num_blocks) * 20;
  options.max_model_len = 128;
  LLM llm(options);
  compared.expect_same(jobs, run_jobs(llm, jobs), "preempted");
  EXPECT_GT(llm.stats().num_preemptions, 0);
  EXPECT_GT(llm.stats().num_cached_tokens, 0);
}

}  // namespace
}  // namespace sluice
