// Drafts of hybrids: the bits are those without drafts, whatever drafts, however many of its rows
// are accepted, and whatever happens to the sequence next. A state that had seen a rejected row, or
// not an accepted one, would change all logits after it.
#include "engine/hybrid/hybrid_drafts.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "sluice/inspect.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::draft_jobs;
using testing::drafting;
using testing::every;
using testing::expect_all_alike;
using testing::Job;
using testing::joined;
using testing::Known;
using testing::KnownTexts;
using testing::make_engine;
using testing::most;
using testing::near_tie_nats;
using testing::none;
using testing::Place;
using testing::random_tokens;
using testing::RandomDrafts;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::tiny_options;
using testing::Tokens;
using testing::whole;

class HybridDrafts : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string& model() const { return GetParam(); }
  // Of one model for all tests.
  const Known& known() const {
    static std::map<std::string, Known> all;
    return all.try_emplace(model(), tiny_options(model()), draft_jobs()).first->second;
  }
  EngineOptions options(SpeculativeMethod method, std::optional<int32_t> num_tokens) const {
    return drafting(model(), method, num_tokens);
  }
  // Runs the known jobs, and compares.
  SpeculationCounts expect_same(LlmEngine& engine, const std::string& what) const {
    expect_all_alike(run_jobs(engine, known().jobs), known().answers, what, near_tie_nats(model()));
    return engine.observations().speculation;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, HybridDrafts, ::testing::ValuesIn(testing::hybrids()),
                         [](const auto& made) {
                           std::string name = made.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// ---- Drafts and their lengths -----------------------------------------------------------------

TEST_P(HybridDrafts, WhateverDraftsChangesNoBit) {
  for (const int32_t num_tokens : {1, 2, 3, 4, 5, 6, 7, 8, 40}) {
    const EngineOptions with_drafts = options(SpeculativeMethod::kNgram, num_tokens);
    const std::string what = std::to_string(num_tokens) + " tokens, ";
    const auto mostly = make_engine(with_drafts, known().source(most));
    const SpeculationCounts partly = expect_same(*mostly, what + "mostly right");
    EXPECT_GT(partly.num_accepted_tokens, 0);
    if (num_tokens % 4 != 0) continue;
    const auto random = make_engine(with_drafts, std::make_unique<RandomDrafts>());
    expect_same(*random, what + "random");
    const auto right = make_engine(with_drafts, known().source(every));
    const SpeculationCounts all = expect_same(*right, what + "right");
    const auto wrong = make_engine(with_drafts, known().source(none));
    const SpeculationCounts no = expect_same(*wrong, what + "wrong");
    EXPECT_GT(no.num_drafts, 0);
    if (!testing::testing_cpu()) continue;
    EXPECT_LT(partly.num_accepted_tokens, partly.num_draft_tokens);
    EXPECT_GT(all.num_draft_tokens, 0);
    EXPECT_EQ(all.num_accepted_tokens, all.num_draft_tokens);
    EXPECT_EQ(no.num_accepted_tokens, 0);
    EXPECT_LT(right->stats().num_steps, wrong->stats().num_steps);
  }
}

TEST_P(HybridDrafts, TheAutomaticLengthChangesNoBit) {
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    const bool is_ngram = method == SpeculativeMethod::kNgram;
    // A step of a tiny model costs a GPU as much as a draft does, and none is made. On a CPU some
    // are, unless another program took the time of a measured pass.
    int64_t num_drafts = 0;
    for (int attempt = 0; attempt < (testing::testing_cpu() ? 5 : 1) && num_drafts == 0;
         ++attempt) {
      const auto engine =
          make_engine(options(method, std::nullopt), is_ngram ? known().source(most) : nullptr);
      num_drafts = expect_same(*engine, "automatic").num_draft_tokens;
    }
    if (testing::testing_cpu()) {
      EXPECT_GT(num_drafts, 0);
    }
  }
}

// The engine's own search, of texts that say the same again.
TEST_P(HybridDrafts, NgramsChangeNoBit) {
  std::vector<Job> jobs;
  for (const int64_t length : {20, 90}) {
    const Tokens once = random_tokens(length, 5);
    jobs.push_back({joined(once, once), sampled(60, length)});
    jobs.back().params.temperature = length == 20 ? 0.0f : 0.5f;
  }
  EngineOptions one_token = options(SpeculativeMethod::kNgram, 4);
  one_token.speculative.prompt_lookup_min = 1;
  const auto engine = make_engine(one_token);
  expect_all_alike(run_jobs(*engine, jobs), run_engine(tiny_options(model()), jobs), "ngram",
                   near_tie_nats(model()));
  EXPECT_GT(engine->observations().speculation.num_drafts, 0);
}

// Greedy answers of transformers, which know nothing of drafts.
TEST_P(HybridDrafts, TheTextIsThatOfTransformers) {
  const testing::Golden golden = testing::read_golden(model());
  Job job{golden.prompt, sampled(static_cast<int32_t>(golden.greedy.size()), 1)};
  job.params.temperature = 0;
  const Known own(tiny_options(model()), {job});
  for (const int32_t num_tokens : {1, 3, 6}) {
    const auto engine =
        make_engine(options(SpeculativeMethod::kNgram, num_tokens), own.source(most));
    const RequestOutput output = run_jobs(*engine, own.jobs)[0];
    const auto differs = std::ranges::mismatch(output.token_ids, golden.greedy).in2;
    const auto at = static_cast<size_t>(differs - golden.greedy.begin());
    EXPECT_TRUE(at == golden.greedy.size() || golden.margins[at] <= 0.1) << "token " << at;
    EXPECT_GT(output.speculation.num_accepted_tokens, 0);
  }
}

// Draft passes step a copy of the state, that of the newest token; the verify pass begins there
// again.
TEST_P(HybridDrafts, SparseDraftsChangeNoBit) {
  for (const int32_t num_tokens : {1, 2, 5, 20}) {
    const auto engine = make_engine(options(SpeculativeMethod::kSparse, num_tokens));
    const SpeculationCounts counts = expect_same(*engine, std::to_string(num_tokens));
    EXPECT_GT(counts.num_accepted_tokens, 0) << num_tokens;
    EXPECT_EQ(engine->observations().draft.num_tokens, counts.num_draft_tokens);
  }
}

// With a budget for all KV a draft pass computes what the verify pass does: a draft that is
// rejected would have begun at another state.
TEST_P(HybridDrafts, DraftsOfTheWholeTextAreRight) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "a GPU rounds products of another height otherwise";
  EngineOptions all = options(SpeculativeMethod::kSparse, 6);
  all.sparse.topk_tokens = 512;
  const auto engine = make_engine(all);
  const SpeculationCounts counts = expect_same(*engine, "whole text");
  EXPECT_GT(counts.num_draft_tokens, 0);
  EXPECT_EQ(counts.num_accepted_tokens, counts.num_draft_tokens);
}

TEST_P(HybridDrafts, BothMethodsTogetherChangeNoBit) {
  const auto some = [](int64_t position) { return position % 5 != 0; };
  const std::vector<Tokens> texts(known().texts.begin(), known().texts.begin() + 4);
  const auto engine = make_engine(options(SpeculativeMethod::kNgramSparse, 6),
                                  std::make_unique<KnownTexts>(texts, some));
  const SpeculationCounts counts = expect_same(*engine, "both");
  EXPECT_GT(engine->observations().draft.num_tokens, 0);
  EXPECT_LT(engine->observations().draft.num_tokens, counts.num_draft_tokens);
}

// ---- Where rows lie ---------------------------------------------------------------------------

// Drafts of every length that begin and are rejected at every place around the ends of blocks and
// chunks. Decoding saves a state at the end of each block, in the middle of a draft, too: a second
// turn goes on from it.
TEST_P(HybridDrafts, BordersOfBlocksAndChunksChangeNoBit) {
  std::vector<Job> jobs;
  for (const int64_t length : {56, 59, 62, 63, 64, 126}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(24, length)});
  }
  const Known first(tiny_options(model()), jobs);
  std::vector<Job> turns;
  for (const Tokens& text : first.texts) {
    turns.push_back({joined(text, random_tokens(20, 7)), sampled(8, 1)});
  }
  EngineOptions cold = tiny_options(model());
  cold.enable_prefix_caching = false;
  const std::vector<RequestOutput> second = run_engine(cold, turns);
  for (int32_t num_tokens = 1; num_tokens <= 8; ++num_tokens) {
    for (const int64_t every_nth : {2, 3, 5}) {
      const std::string what = std::to_string(num_tokens) + ", " + std::to_string(every_nth);
      const auto engine =
          make_engine(options(SpeculativeMethod::kNgram, num_tokens),
                      first.source([&](int64_t position) { return position % every_nth != 0; }));
      expect_all_alike(run_jobs(*engine, jobs), first.answers, what, near_tie_nats(model()));
      const std::vector<RequestOutput> outputs = run_jobs(*engine, turns);
      expect_all_alike(outputs, second, what + ", second turn", near_tie_nats(model()));
      for (size_t i = 0; i < turns.size() && testing::testing_cpu(); ++i) {
        EXPECT_EQ(outputs[i].num_cached_tokens, whole(std::ssize(first.texts[i]) - 1)) << what;
      }
    }
  }
}

TEST_P(HybridDrafts, WhereKvIsDoesNotMatter) {
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    const bool is_ngram = method == SpeculativeMethod::kNgram;
    const EngineOptions with_drafts = options(method, is_ngram ? 19 : 5);
    for (const Place& place : testing::comparable_places(with_drafts)) {
      const auto engine =
          make_engine(place.put(with_drafts), is_ngram ? known().source(most) : nullptr);
      EXPECT_GT(expect_same(*engine, place.name).num_accepted_tokens, 0) << place.name;
    }
  }
}

TEST_P(HybridDrafts, GraphsOfDraftPassesChangeNoBit) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "a GPU has graphs in every other test";
  const EngineOptions with_drafts = options(SpeculativeMethod::kSparse, 7);
  LlmEngine engine(with_drafts, {.device = testing::make_test_device({.num_threads = 2}),
                                 .adjust_plan = testing::forced_graphs(with_drafts)});
  expect_same(engine, "graphs");
  EXPECT_GT(engine.stats().num_graph_launches, 0);
}

// ---- What happens on the way ------------------------------------------------------------------

TEST_P(HybridDrafts, NumbersOfSequencesDoNotMatter) {
  for (size_t count = 1; count <= known().jobs.size(); count += 2) {
    const auto end = static_cast<int64_t>(count);
    const auto engine = make_engine(options(SpeculativeMethod::kNgram, 5), known().source(most));
    expect_all_alike(run_jobs(*engine, {known().jobs.begin(), known().jobs.begin() + end}),
                     {known().answers.begin(), known().answers.begin() + end},
                     std::to_string(count) + " sequences", near_tie_nats(model()));
  }
}

// With snapshots a sequence goes on from one, without it reads its tokens again.
TEST_P(HybridDrafts, PreemptionLosesNothing) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 5; ++i) {
    jobs.push_back({random_tokens(60, i), sampled(50, static_cast<int64_t>(i))});
  }
  const Known all(tiny_options(model()), jobs);
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    for (const bool caches : {true, false}) {
      EngineOptions few = options(method, 5);
      few.enable_prefix_caching = caches;
      const MemoryPlan plan = plan_memory(few);
      few.kv.cache_bytes = 20 * (*few.kv.cache_bytes / static_cast<size_t>(plan.num_blocks));
      few.max_model_len = 128;
      const bool is_ngram = method == SpeculativeMethod::kNgram;
      const auto engine = make_engine(few, is_ngram ? all.source(most) : nullptr);
      expect_all_alike(run_jobs(*engine, jobs), all.answers, "preempted", near_tie_nats(model()));
      EXPECT_GT(engine->stats().num_preemptions, 0);
      EXPECT_EQ(engine->blocks().num_used_blocks(), 0);
    }
  }
}

// Requests end and are cancelled after any number of steps; the next ones have their seats.
TEST_P(HybridDrafts, ACancelledSequenceLeavesNothingInItsSeat) {
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    EngineOptions few = options(method, 6);
    few.max_num_seqs = 3;
    const bool is_ngram = method == SpeculativeMethod::kNgram;
    const auto engine = make_engine(few, is_ngram ? known().source(most) : nullptr);
    for (int round = 0; round < 12; ++round) {
      const auto flag = std::make_shared<std::atomic<bool>>(false);
      const Job& job = known().jobs[static_cast<size_t>(round) % known().jobs.size()];
      const SequenceId id = engine->add_request(job.prompt, job.params);
      engine->add_request(random_tokens(30, 2), sampled(5, 1), flag);
      for (int i = 0; i < round % 7; ++i) engine->step();
      *flag = round % 2 == 0;
      engine->cancel_request(id);
      if (round % 3 == 0) continue;
      while (engine->has_unfinished()) engine->step();
    }
    while (engine->has_unfinished()) engine->step();
    EXPECT_EQ(engine->blocks().num_used_blocks(), 0);
    expect_same(*engine, "after others");
  }
}

// Chunks of a long prompt between the steps of the others.
TEST_P(HybridDrafts, PromptsComeInBetween) {
  EngineOptions in_chunks = options(SpeculativeMethod::kNgram, 4);
  in_chunks.prefill_chunk_tokens = 48;
  in_chunks.max_num_batched_tokens = 64;
  const auto engine = make_engine(in_chunks, known().source(most));
  std::vector<RequestOutput> outputs;
  for (const Job& job : known().jobs) {
    engine->add_request(job.prompt, job.params);
    testing::run_steps(*engine, 3, outputs);
  }
  testing::run_steps(*engine, 1000, outputs);
  std::ranges::sort(outputs, {}, &RequestOutput::request_id);
  expect_all_alike(outputs, known().answers, "in between", near_tie_nats(model()));
}

// A prompt, or the rest of one that is cached, of as many rows as a verify pass has, or as the
// draft passes whose graphs are replayed beside it: it is neither.
TEST_P(HybridDrafts, PromptsOfAsManyRowsAsAVerifyPass) {
  for (const int32_t num_drafts : {1, 4}) {
    const int64_t rows = 1 + num_drafts;
    const Tokens text = random_tokens(60, 7);
    std::vector<Job> jobs{{text, sampled(40, 1)}};
    for (const int64_t length : {int64_t{1}, rows, 2 * rows, whole(60) + 1, whole(60) + rows}) {
      const Tokens begin = length < whole(60) ? Tokens() : Tokens(text.begin(), text.begin() + 48);
      const int64_t num_more = length - std::ssize(begin);
      jobs.push_back({joined(begin, random_tokens(num_more, 8)), sampled(20, 2)});
    }
    const Known all(tiny_options(model()), jobs);
    const EngineOptions with_drafts = options(SpeculativeMethod::kSparse, num_drafts);
    LlmEngine engine(with_drafts, {.device = testing::make_test_device({.num_threads = 2}),
                                   .adjust_plan = testing::forced_graphs(with_drafts)});
    std::vector<RequestOutput> outputs;
    for (const Job& job : jobs) {
      engine.add_request(job.prompt, job.params);
      testing::run_steps(engine, 5, outputs);
    }
    testing::run_steps(engine, 1000, outputs);
    std::ranges::sort(outputs, {}, &RequestOutput::request_id);
    expect_all_alike(outputs, all.answers, std::to_string(num_drafts) + " drafts",
                     near_tie_nats(model()));
    EXPECT_GT(engine.stats().num_graph_launches, 0);
  }
}

}  // namespace
}  // namespace sluice
