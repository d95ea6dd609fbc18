// Speculation on equals speculation off, bit for bit: whatever drafts, however long drafts are,
// wherever KV is, and whatever happens on the way. The reference is an engine without speculation
// and with full attention for decode.
#include <atomic>

#include <gtest/gtest.h>

#include "engine/speculation/speculative_engine.h"
#include "support/offload_of.h"
#include "support/seeds.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::Job;
using testing::kBlockBytes;
using testing::KnownTexts;
using testing::kSpeculationModel;
using testing::make_engine;
using testing::offload_of;
using testing::offloaded;
using testing::Place;
using testing::place_of;
using testing::places;
using testing::random_tokens;
using testing::RandomDrafts;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::sampled_places;
using testing::speculative;
using testing::texts_of;
using testing::tiny_options;

class Speculation : public testing::SpeculationTest {};

TEST_F(Speculation, WhateverDraftsChangesNoBit) {
  for (const int32_t num_tokens : {1, 2, 7, 40}) {
    const EngineOptions options = speculative(SpeculativeMethod::kNgram, num_tokens);
    const std::string what = std::to_string(num_tokens) + " tokens, ";
    const auto right = make_engine(options, always_right());
    expect_all_alike(run_jobs(*right, jobs_), reference_, what + "right");
    const auto wrong = make_engine(options, known([](int64_t) { return false; }));
    expect_all_alike(run_jobs(*wrong, jobs_), reference_, what + "wrong");
    const auto mostly = make_engine(options, mostly_right());
    expect_all_alike(run_jobs(*mostly, jobs_), reference_, what + "mostly right");
    const auto random = make_engine(options, std::make_unique<RandomDrafts>());
    expect_all_alike(run_jobs(*random, jobs_), reference_, what + "random");
    if (!testing::testing_cpu()) continue;
    const SpeculationCounts of_right = right->observations().speculation;
    EXPECT_EQ(of_right.num_accepted_tokens, of_right.num_draft_tokens);
    EXPECT_GT(of_right.num_draft_tokens, 0);
    EXPECT_LT(right->stats().num_steps, wrong->stats().num_steps);
    EXPECT_EQ(wrong->observations().speculation.num_accepted_tokens, 0);
    EXPECT_GT(wrong->observations().speculation.num_drafts, 0);
    EXPECT_GT(mostly->observations().speculation.num_accepted_tokens, 0);
  }
}

TEST_F(Speculation, NgramsChangeNoBit) {
  std::vector<Job> jobs;
  for (const int64_t length : {20, 90}) {
    Job job{random_tokens(length, 5), sampled(60, length)};
    const std::vector<int32_t> once = job.prompt;
    job.prompt.insert(job.prompt.end(), once.begin(), once.end());
    job.params.temperature = length == 20 ? 0.0f : 0.5f;
    jobs.push_back(std::move(job));
  }
  const std::vector<RequestOutput> reference = run_engine(tiny_options(kSpeculationModel), jobs);
  const auto engine = make_engine(speculative(SpeculativeMethod::kNgram, 4));
  const std::vector<RequestOutput> outputs = run_jobs(*engine, jobs);
  expect_all_alike(outputs, reference, "ngram");
  EXPECT_GT(engine->observations().speculation.num_drafts, 0);
}

TEST_F(Speculation, WhereKvIsDoesNotMatter) {
  for (const Place& place : sampled_places()) {
    const EngineOptions options = place.put(speculative(SpeculativeMethod::kNgram, 19));
    const auto engine = make_engine(options, mostly_right());
    expect_all_alike(run_jobs(*engine, jobs_), reference_, place.name);
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0) << place.name;
  }
}

// The decode policy drafts, and the text is that of full attention.
TEST_F(Speculation, SparseDraftsChangeNoBit) {
  for (const Place& place : sampled_places()) {
    for (const int32_t num_tokens : {1, 5, 20}) {
      const EngineOptions options = place.put(speculative(SpeculativeMethod::kSparse, num_tokens));
      const auto engine = make_engine(options);
      const std::string what = std::string(place.name) + ", " + std::to_string(num_tokens);
      expect_all_alike(run_jobs(*engine, jobs_), reference_, what);
      const Observations seen = engine->observations();
      EXPECT_GT(seen.speculation.num_accepted_tokens, 0) << what;
      EXPECT_GT(seen.draft.num_tokens, 0) << what;
      if (place.name == std::string("resident")) {
        EXPECT_EQ(seen.draft.num_tokens, seen.speculation.num_draft_tokens);
      }
      EXPECT_EQ(engine->stats().num_hot_page_hits > 0, place.name == std::string("hot pages"));
    }
  }
}

// The source where it has a draft, passes for the others of the same step.
TEST_F(Speculation, BothMethodsTogetherChangeNoBit) {
  for (const Place& place : sampled_places()) {
    const auto some = [](int64_t position) { return position % 5 != 0; };
    const auto texts = std::vector(texts_.begin(), texts_.begin() + 4);
    const EngineOptions options = place.put(speculative(SpeculativeMethod::kNgramSparse, 6));
    const auto engine = make_engine(options, std::make_unique<KnownTexts>(texts, some));
    expect_all_alike(run_jobs(*engine, jobs_), reference_, place.name);
    EXPECT_LT(engine->observations().draft.num_tokens,
              engine->observations().speculation.num_draft_tokens);
  }
}

// Draft passes as graphs: tables of own blocks change their width at block borders.
TEST_F(Speculation, GraphsOfDraftPassesChangeNoBit) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "a GPU has graphs in every other test";
  for (const Place& place : sampled_places()) {
    const EngineOptions options = place.put(speculative(SpeculativeMethod::kSparse, 9));
    LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                           .adjust_plan = testing::forced_graphs(options)};
    LlmEngine engine(options, std::move(parts));
    expect_all_alike(run_jobs(engine, jobs_), reference_, place.name);
    EXPECT_GT(engine.stats().num_graph_launches, 0) << place.name;
  }
}

TEST_F(Speculation, NumbersOfSequencesDoNotMatter) {
  for (size_t count = 1; count <= jobs_.size(); ++count) {
    const std::vector<Job> jobs(jobs_.begin(), jobs_.begin() + static_cast<int64_t>(count));
    const std::vector<RequestOutput> expected(reference_.begin(),
                                              reference_.begin() + static_cast<int64_t>(count));
    const auto place = places()[count % 2 == 0 ? 0 : 2];
    const auto engine =
        make_engine(place.put(speculative(SpeculativeMethod::kNgram, 5)), mostly_right());
    expect_all_alike(run_jobs(*engine, jobs), expected, std::to_string(count) + " sequences");
    // Of these the first few find their pages, the others gather.
    const auto hot =
        make_engine(place_of("hot pages").put(speculative(SpeculativeMethod::kSparse, 5)));
    expect_all_alike(run_jobs(*hot, jobs), expected, std::to_string(count) + ", hot pages");
  }
}

// ---- What happens on the way ------------------------------------------------------------------

TEST_F(Speculation, PreemptionLosesNothing) {
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    for (const char* name : {"resident", "chunked", "hot pages"}) {
      EngineOptions options = place_of(name).put(speculative(method, 7));
      const bool offload = name != std::string("resident");
      options.max_model_len = 256;
      (offload ? options.kv.host_bytes : options.kv.cache_bytes) = 22 * kBlockBytes;
      if (name == std::string("hot pages")) options.kv.device_bytes = 16 * kBlockBytes;
      const bool is_ngram = method == SpeculativeMethod::kNgram;
      const auto engine = make_engine(options, is_ngram ? mostly_right() : nullptr);
      expect_all_alike(run_jobs(*engine, jobs_), reference_, name);
      EXPECT_GT(engine->stats().num_preemptions, 0);
      EXPECT_EQ(engine->blocks().num_used_blocks(), 0);
    }
  }
}

// Blocks that verify passes filled are found by the next turn, and hold what decode would have
// written. Draft rows are in none of them.
TEST_F(Speculation, PrefixHitsOfVerifiedBlocksEqualCold) {
  const Job first{random_tokens(200, 1), sampled(50, 1)};
  const std::vector<RequestOutput> answer = run_engine(tiny_options(kSpeculationModel), {first});
  std::vector<int32_t> prompt = texts_of({first}, answer)[0];
  const std::vector<int32_t> question = random_tokens(20, 2);
  prompt.insert(prompt.end(), question.begin(), question.end());
  const Job second{prompt, sampled(30, 2)};
  const std::vector<RequestOutput> cold = run_engine(tiny_options(kSpeculationModel), {second});
  const auto texts = texts_of({first, second}, {answer[0], cold[0]});
  for (const Place& place : sampled_places()) {
    const auto engine = make_engine(place.put(speculative(SpeculativeMethod::kNgram, 11)),
                                    std::make_unique<KnownTexts>(texts, [](int64_t position) {
                                      return testing::scramble(position) % 3 != 0;
                                    }));
    expect_all_alike(run_jobs(*engine, {first}), answer, place.name);
    const std::vector<RequestOutput> warm = run_jobs(*engine, {second});
    expect_all_alike(warm, cold, place.name);
    const int32_t block_tokens = engine->blocks().block_tokens();
    EXPECT_EQ(warm[0].num_cached_tokens, 249 / block_tokens * block_tokens) << place.name;
  }
}

TEST_F(Speculation, CancellationGivesEverythingBack) {
  const std::pair<SpeculativeMethod, const char*> cases[] = {
      {SpeculativeMethod::kNgram, "chunked"},
      {SpeculativeMethod::kSparse, "chunked"},
      {SpeculativeMethod::kSparse, "hot pages"}};
  for (const auto& [method, name] : cases) {
    const EngineOptions options = place_of(name).put(speculative(method, 20));
    const bool is_ngram = method == SpeculativeMethod::kNgram;
    const auto engine = make_engine(options, is_ngram ? std::make_unique<RandomDrafts>() : nullptr);
    for (int round = 0; round < 30; ++round) {
      const auto flag = std::make_shared<std::atomic<bool>>(false);
      const SequenceId a = engine->add_request(random_tokens(100 + round, 1), sampled(20, 1));
      engine->add_request(random_tokens(30, 2), sampled(5, 1), flag);
      for (int i = 0; i < round % 7; ++i) engine->step();
      *flag = round % 2 == 0;
      engine->cancel_request(a);
      while (engine->has_unfinished()) engine->step();
    }
    EXPECT_EQ(engine->blocks().num_used_blocks(), 0);
    EXPECT_EQ(offload_of(*engine).tails().num_free(), engine->plan().offloaded.sizes.num_tails);
  }
}

TEST_F(Speculation, TakesWhatWasPlannedAndAStepAllocatesNothing) {
  for (const Place& place : sampled_places()) {
    for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
      const EngineOptions options = place.put(speculative(method, 20));
      const auto engine =
          make_engine(options, method == SpeculativeMethod::kNgram ? always_right() : nullptr);
      EXPECT_EQ(engine->device().allocated_bytes(MemoryKind::kDevice),
                engine->plan().memory.device_used_bytes());
      const int64_t before = engine->device().num_allocations();
      run_jobs(*engine, jobs_);
      EXPECT_EQ(engine->device().num_allocations(), before) << place.name;
    }
  }
}

// Delays between the tasks of all streams: loads that begin beside a draft pass, tails that leave.
TEST_F(Speculation, ScheduleOfStreamsDoesNotMatter) {
  for (const uint64_t seed : testing::test_seeds(3)) {
    const EngineOptions options =
        offloaded(speculative(SpeculativeMethod::kSparse, 6), KvOffload::kChunked, 16);
    LlmEngine::Parts parts{
        .device = testing::make_test_device({.num_threads = testing::testing_cpu() ? 2 : 0},
                                            {.schedule_seed = seed})};
    LlmEngine engine(options, std::move(parts));
    expect_all_alike(run_jobs(engine, jobs_), reference_,
                     "SLUICE_TEST_SEED=" + std::to_string(seed));
  }
}

// ---- Draft rows -------------------------------------------------------------------------------

// Fills the rows of the unsealed block after its valid tokens with NaN, in every layer; returns
// their number.
int64_t poison_after_valid(const LlmEngine& engine) {
  int64_t num_rows = 0;
  const KvLayout& layout = engine.plan().kv_layout;
  const KvBlockShape& shape = layout.block;
  for (const auto& sequence : engine.scheduler().running()) {
    for (const SequenceBlock& block : sequence->kv.blocks()) {
      if (block.num_valid_tokens == shape.block_tokens || block.num_valid_tokens == 0) continue;
      for (const LayerId layer : layout.layers()) {
        auto* bytes =
            const_cast<std::byte*>(engine.residency().block_bytes(sequence->id, block, layer));
        auto* values = reinterpret_cast<uint16_t*>(bytes);
        const int64_t row = shape.head_dim;
        for (int32_t part = 0; part < 2 * shape.num_kv_heads; ++part) {
          uint16_t* first = values + part * shape.block_tokens * row;
          std::fill(first + block.num_valid_tokens * row, first + shape.block_tokens * row,
                    uint16_t{0x7fc0});
          num_rows += shape.block_tokens - block.num_valid_tokens;
        }
      }
    }
  }
  return num_rows;
}

// What a step leaves after the valid tokens is never read.
TEST_F(Speculation, DraftRowsAreNeverReadAfterTheirStep) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "the test writes to device memory";
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    for (const char* name : {"resident", "chunked", "hot pages"}) {
      const EngineOptions options = place_of(name).put(speculative(method, 7));
      const bool is_ngram = method == SpeculativeMethod::kNgram;
      const auto engine = make_engine(options, is_ngram ? mostly_right() : nullptr);
      std::vector<RequestOutput> outputs(jobs_.size());
      for (const Job& job : jobs_) engine->add_request(job.prompt, job.params);
      int64_t num_poisoned = 0;
      while (engine->has_unfinished()) {
        for (RequestOutput& output : engine->step()) {
          outputs[static_cast<size_t>(output.request_id)] = std::move(output);
        }
        num_poisoned += poison_after_valid(*engine);
      }
      EXPECT_GT(num_poisoned, 1000);
      expect_all_alike(outputs, reference_, "poisoned");
    }
  }
}

}  // namespace
}  // namespace sluice
