// Drafts of one hybrid: beside sequences without drafts, with late masks, other weights and KV,
// with a store, and their memory. The bits are those without drafts.
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_copies.h"
#include "engine/hybrid/hybrid_drafts.h"
#include "engine/hybrid/hybrid_prompts.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "engine/store/store_engine.h"
#include "sluice/inspect.h"
#include "sluice/structured_output.h"
#include "support/run_bits.h"
#include "support/seeds.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::draft_jobs;
using testing::drafting;
using testing::expect_all_alike;
using testing::Job;
using testing::joined;
using testing::kHybrid;
using testing::Known;
using testing::make_engine;
using testing::most;
using testing::near_tie_nats;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::tiny_options;
using testing::whole;

// Rows whose masks were late are not committed, nor are the drafts after them.
TEST(HybridDraft, LateMasksChangeNoBit) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back({random_tokens(20 + 9 * static_cast<int64_t>(i), i), sampled(24, 1)});
    jobs.back().params.ignore_eos = false;
    jobs.back().params.structured = std::make_shared<StructuredOutput>(
        StructuredOutput{.kind = StructureKind::kRegex, .text = "([a-z]{2}[0-9]){8}"});
  }
  const Known all(tiny_options(kHybrid), jobs);
  auto count = std::make_shared<std::atomic<int>>(0);
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                         .before_masks = [count] {
                           if (++*count % 5 != 0) return;
                           std::this_thread::sleep_for(std::chrono::milliseconds(6));
                         }};
  parts.draft_source = all.source(most);
  LlmEngine engine(drafting(kHybrid, SpeculativeMethod::kNgram, 4), std::move(parts));
  expect_all_alike(run_jobs(engine, jobs), all.answers, "late masks", near_tie_nats(kHybrid));
  EXPECT_GT(engine.observations().speculation.num_accepted_tokens, 0);
}

// Eight sequences draft, the others have one row each in the same passes, also records.
TEST(HybridDraft, SequencesThatDoNotDraftAreBesideThoseThatDo) {
  std::vector<Job> jobs;
  for (int64_t i = 0; i < 13; ++i) {
    jobs.push_back({random_tokens(5 + 11 * i, static_cast<uint64_t>(i)),
                    sampled(12 + static_cast<int32_t>(3 * i), i)});
  }
  const Known all(tiny_options(kHybrid), jobs);
  for (const int32_t num_tokens : {2, 5}) {
    const auto engine =
        make_engine(drafting(kHybrid, SpeculativeMethod::kNgram, num_tokens), all.source(most));
    expect_all_alike(run_jobs(*engine, jobs), all.answers, "13 sequences", near_tie_nats(kHybrid));
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0);
  }
}

// Experts that flow in for the rows of a verify pass, or of which some are kept.
TEST(HybridDraft, ExpertsOnTheHostChangeNoBit) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "CUDA has no kernel for experts of odd widths";
  for (const char* model : {"qwen35moe-hybrid-experts8", "qwen3next-hybrid-experts6"}) {
    const Known all(tiny_options(model), draft_jobs());
    for (const size_t cache_bytes : {size_t{0}, size_t{1} << 20}) {
      EngineOptions on_host = drafting(model, SpeculativeMethod::kNgram, 5);
      on_host.weights_offload = WeightsOffload::kExperts;
      on_host.experts_device_bytes = cache_bytes;
      const auto engine = make_engine(on_host, all.source(most));
      expect_all_alike(run_jobs(*engine, all.jobs), all.answers, model);
      EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0);
    }
  }
}

// The projections that write records are of any weights, and KV of any type.
TEST(HybridDraft, WeightsAndKvOfFewBitsChangeNoBit) {
  const auto check = [](EngineOptions options, const std::string& what) {
    const Known all(options, draft_jobs());
    options.speculative.method = SpeculativeMethod::kNgram;
    options.speculative.num_tokens = 5;
    const auto engine = make_engine(options, all.source(most));
    const std::vector<RequestOutput> answers = run_jobs(*engine, all.jobs);
    // With FP8 weights a GPU rounds activations of larger passes to FP8 (docs/speculation.md).
    if (testing::testing_cpu()) expect_all_alike(answers, all.answers, what);
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0) << what;
  };
  const auto fp8 = testing::write_fp8(testing::dense_hybrid(), WeightScales::kRows);
  const auto integers = testing::write_integers(testing::grouped_hybrid(),
                                                {.form = IntegerForm::kPackQuantized, .group = -1});
  for (const auto* copies : {fp8.get(), integers.get()}) {
    EngineOptions options = tiny_options("qwen3-group2-tied");
    options.model = copies->quantized.path();
    check(options, copies == fp8.get() ? "FP8" : "4 bits");
  }
  EngineOptions fp8_kv = tiny_options(kHybrid);
  fp8_kv.kv.cache_dtype = KvCacheDtype::kFp8;
  check(fp8_kv, "FP8 KV");
}

// The store has states of whole blocks of accepted tokens: another engine goes on from them.
TEST(HybridDraft, StoredStatesAreThoseOfAcceptedTokens) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "engines with a store are on the CPU device";
  const Known first(tiny_options(kHybrid), {{random_tokens(100, 1), sampled(45, 1)}});
  const std::vector<Job> turn = {{joined(first.texts[0], random_tokens(20, 2)), sampled(20, 2)}};
  const std::vector<RequestOutput> second = run_engine(tiny_options(kHybrid), turn);
  const testing::TemporaryStore store;
  EngineOptions stored =
      testing::with_store(drafting(kHybrid, SpeculativeMethod::kNgram, 6), store);
  stored.kv_store.min_tokens = 0;
  {
    LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2})};
    parts.draft_source = first.source(most);
    LlmEngine engine(stored, std::move(parts));
    expect_all_alike(run_jobs(engine, first.jobs), first.answers, "first turn");
  }
  const std::vector<RequestOutput> warm = testing::run_with_store(stored, turn);
  expect_all_alike(warm, second, "second turn");
  EXPECT_EQ(warm[0].num_stored_tokens, whole(100 + 45 - 1));
}

// Delays between the tasks of all streams.
TEST(HybridDraft, TheScheduleOfStreamsDoesNotMatter) {
  const Known all(tiny_options(kHybrid), draft_jobs());
  for (const uint64_t seed : testing::test_seeds(3)) {
    const EngineOptions offloaded = testing::offloaded(
        drafting(kHybrid, SpeculativeMethod::kSparse, 6), KvOffload::kChunked, 16);
    LlmEngine engine(
        offloaded, {.device = testing::make_test_device(
                        {.num_threads = testing::testing_cpu() ? 2 : 0}, {.schedule_seed = seed})});
    expect_all_alike(run_jobs(engine, all.jobs), all.answers,
                     "SLUICE_TEST_SEED=" + std::to_string(seed), near_tie_nats(kHybrid));
  }
}

TEST(HybridDraft, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  const Known all(tiny_options(kHybrid), draft_jobs());
  const EngineOptions with_drafts = drafting(kHybrid, SpeculativeMethod::kNgram, 5);
  const auto engine = make_engine(with_drafts, all.source(most));
  const MemoryPlan& plan = engine->plan().memory;
  EXPECT_EQ(engine->device().allocated_bytes(MemoryKind::kDevice), plan.device_used_bytes());
  if (testing::testing_cpu()) {
    EXPECT_EQ(engine->device().allocated_bytes(MemoryKind::kPinned), plan.pinned_used_bytes());
  }
  const int64_t before = engine->device().num_allocations();
  run_jobs(*engine, all.jobs);
  EXPECT_EQ(engine->device().num_allocations(), before);
}

// Rows of 16 sequences and of 8 drafts of 5; of three layers, 2 * 100 + 2 * 60 numbers in bf16 and
// gates of 5 heads twice in f32; and four arrays of at most 32 sequences. Pieces of 256 bytes.
TEST(HybridDraft, RecordsArePlannedToTheByte) {
  const auto up = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  constexpr size_t kRows = 16 + 8 * 5;
  const size_t records = 3 * (up(kRows * (2 * 100 + 2 * 60) * 2) + up(kRows * 2 * 5 * 4));
  const size_t arrays = 3 * up(32 * 4) + up(33 * 4);
  std::map<std::string, size_t> found;
  const auto find = [&](const EngineOptions& options) {
    found.clear();
    for (const MemoryPlanEntry& entry : plan_memory(options).entries) {
      if (entry.name == "records of drafts") found[entry.memory] += entry.bytes;
    }
    return found;
  };
  EXPECT_EQ(find(drafting(kHybrid, SpeculativeMethod::kNgram, 5)),
            (std::map<std::string, size_t>{{"device", records + arrays}, {"pinned", arrays}}));
  EXPECT_TRUE(find(tiny_options(kHybrid)).empty());
  EXPECT_TRUE(find(drafting("qwen3-group2-tied", SpeculativeMethod::kNgram, 5)).empty());
}

}  // namespace
}  // namespace sluice
