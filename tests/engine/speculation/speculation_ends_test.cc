// Where texts end inside drafts, what callers get of a step with several tokens, the automatic
// length of drafts, and forced acceptance.
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "engine/speculation/speculative_engine.h"
#include "engine/store/store_engine.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::Job;
using testing::KnownTexts;
using testing::kSpeculationModel;
using testing::make_engine;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::speculative;
using testing::texts_of;
using testing::tiny_options;

class SpeculationEnds : public testing::SpeculationTest {};

// ---- Ends -------------------------------------------------------------------------------------

void expect_same_end(const std::vector<RequestOutput>& outputs,
                     const std::vector<RequestOutput>& expected) {
  expect_all_alike(outputs, expected, "end");
  if (!testing::testing_cpu()) return;
  EXPECT_EQ(outputs[0].text, expected[0].text);
  EXPECT_EQ(outputs[0].finish_reason, expected[0].finish_reason);
  EXPECT_EQ(outputs[0].stop_reason, expected[0].stop_reason);
}

// The draft goes on where the text ends: at a stop token, a stop string, max_tokens. The token that
// min_tokens forbids is none of the text's.
TEST_F(SpeculationEnds, WhatEndsATextEndsItInsideADraft) {
  const std::vector<int32_t> prompt = random_tokens(50, 8);
  SamplingParams free = sampled(60, 3);
  const std::vector<RequestOutput> whole =
      run_engine(tiny_options(kSpeculationModel), {{prompt, free}});
  const auto texts = texts_of({{prompt, free}}, whole);
  const std::string& text = whole[0].text;
  ASSERT_GT(text.size(), 20u);
  std::vector<Job> jobs;
  for (const int end : {1, 2, 5, 17}) {
    SamplingParams by_length = free;
    by_length.max_tokens = end;
    jobs.push_back({prompt, by_length});
    SamplingParams by_id = free;
    by_id.stop_token_ids = {whole[0].token_ids[static_cast<size_t>(end)]};
    jobs.push_back({prompt, by_id});
    by_id.min_tokens = end + 4;
    jobs.push_back({prompt, by_id});
    SamplingParams by_text = free;
    by_text.stop = {text.substr(text.size() / 20 * static_cast<size_t>(end), 2), "never"};
    jobs.push_back({prompt, by_text});
  }
  for (const Job& job : jobs) {
    const std::vector<RequestOutput> expected = run_engine(tiny_options(kSpeculationModel), {job});
    const auto engine =
        make_engine(speculative(SpeculativeMethod::kNgram, 9),
                    std::make_unique<KnownTexts>(texts, [](int64_t) { return true; }));
    expect_same_end(run_jobs(*engine, {job}), expected);
    // Drafts of passes, whose rows may be past the end too.
    const auto hot =
        make_engine(testing::place_of("hot pages").put(speculative(SpeculativeMethod::kSparse, 9)));
    expect_same_end(run_jobs(*hot, {job}), expected);
  }
}

// One output of a request for each step, with all tokens of the step.
TEST_F(SpeculationEnds, DeltasJoinToTheWholeAnswer) {
  const auto engine = make_engine(speculative(SpeculativeMethod::kNgram, 6), mostly_right());
  for (Job job : jobs_) {
    job.params.output_kind = OutputKind::kDelta;
    engine->add_request(job.prompt, job.params);
  }
  std::vector<RequestOutput> joined(jobs_.size());
  size_t longest = 0;
  while (engine->has_unfinished()) {
    std::set<int64_t> ids;
    for (RequestOutput& output : engine->step()) {
      EXPECT_TRUE(ids.insert(output.request_id).second);
      longest = std::max(longest, output.token_ids.size());
      joined[static_cast<size_t>(output.request_id)].append(std::move(output));
    }
  }
  expect_all_alike(joined, reference_, "deltas");
  SpeculationCounts sum;
  for (size_t i = 0; i < joined.size(); ++i) {
    sum.add(joined[i].speculation);
    if (!testing::testing_cpu()) continue;
    EXPECT_EQ(joined[i].text, reference_[i].text);
  }
  EXPECT_GT(longest, 1u);
  EXPECT_EQ(sum.num_draft_tokens, engine->observations().speculation.num_draft_tokens);
  EXPECT_GT(joined[3].speculation.num_accepted_tokens, 0) << "it has penalties";
}

// ---- Forced acceptance ------------------------------------------------------------------------

TEST_F(SpeculationEnds, ForcedAcceptanceAcceptsAtItsRate) {
  const std::vector<Job> jobs{{random_tokens(40, 4), sampled(400, 4)}};
  const auto run = [&](double rate) {
    const auto engine =
        make_engine(speculative(SpeculativeMethod::kSparse, 8), nullptr, accept_at_rate(rate));
    const RequestOutput output = run_jobs(*engine, jobs)[0];
    EXPECT_EQ(output.token_ids.size(), 400u);
    return output.speculation;
  };
  EXPECT_EQ(run(0).num_accepted_tokens, 0);
  const SpeculationCounts all = run(1);
  EXPECT_EQ(all.num_accepted_tokens, all.num_draft_tokens);
  // (1 - a^(k+1)) / (1 - a) tokens for each verify pass.
  const SpeculationCounts some = run(0.8);
  const double per_verify =
      1.0 + static_cast<double>(some.num_accepted_tokens) / static_cast<double>(some.num_drafts);
  EXPECT_NEAR(per_verify, (1 - std::pow(0.8, 9)) / 0.2, 0.9);
}

// ---- The automatic length ---------------------------------------------------------------------

// A clock whose times mean nothing: lengths of drafts change from step to step, and no bit does.
TEST_F(SpeculationEnds, TimesDecideNoToken) {
  for (const SpeculativeMethod method : {SpeculativeMethod::kNgram, SpeculativeMethod::kSparse}) {
    for (const testing::Place& place : {testing::places()[0], testing::places()[2]}) {
      EngineOptions options = place.put(speculative(method, 1));
      options.speculative.num_tokens.reset();
      LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2})};
      parts.now_ns = [now = int64_t{0}, count = int64_t{0}]() mutable {
        now += static_cast<int64_t>(testing::scramble(++count) % 1000);
        return now;
      };
      if (method == SpeculativeMethod::kNgram) parts.draft_source = mostly_right();
      LlmEngine engine(options, std::move(parts));
      expect_all_alike(run_jobs(engine, jobs_), reference_, place.name);
      EXPECT_GT(engine.observations().speculation.num_drafts, 0) << place.name;
    }
  }
}

// ---- The KV store ------------------------------------------------------------------------------

// Blocks that verify passes filled are stored, and an engine without speculation goes on from them.
TEST_F(SpeculationEnds, StoredBlocksHoldNoDrafts) {
  const Job first{random_tokens(100, 1), sampled(60, 1)};
  for (const testing::Place& place : {testing::places()[0], testing::places()[2]}) {
    EngineOptions options = place.put(speculative(SpeculativeMethod::kNgram, 7));
    options.device = "cpu";
    EngineOptions plain = options;
    plain.speculative = {};
    const std::vector<RequestOutput> answer = run_engine(plain, {first});
    const auto texts = texts_of({first}, answer);
    Job second{texts[0], sampled(20, 2)};
    const std::vector<RequestOutput> cold = run_engine(plain, {second});
    const testing::TemporaryStore store;
    options.kv_store.min_tokens = 0;
    plain.kv_store.min_tokens = 0;
    {
      LlmEngine::Parts parts{.device = make_device("cpu", {.num_threads = 2})};
      parts.draft_source = std::make_unique<KnownTexts>(
          texts, [](int64_t position) { return testing::scramble(position) % 4 != 0; });
      LlmEngine engine(testing::with_store(options, store), std::move(parts));
      testing::expect_all_same(run_jobs(engine, {first}), answer, place.name);
      EXPECT_GT(engine.observations().speculation.num_accepted_tokens, 0);
    }
    const auto warm = testing::run_with_store(testing::with_store(plain, store), {second});
    testing::expect_all_same(warm, cold, place.name);
    EXPECT_EQ(warm[0].num_stored_tokens, 144) << "159 tokens had KV: 9 full blocks";
  }
}

// ---- Methods and policies ---------------------------------------------------------------------

TEST_F(SpeculationEnds, AMethodNeedsItsPolicy) {
  EngineOptions sparse_without = speculative(SpeculativeMethod::kSparse, 4);
  sparse_without.sparse = {};
  EXPECT_THROW(make_engine(sparse_without), Error);
  EngineOptions ngram_with = speculative(SpeculativeMethod::kSparse, 4);
  ngram_with.speculative.method = SpeculativeMethod::kNgram;
  EXPECT_THROW(make_engine(ngram_with), Error);
}

}  // namespace
}  // namespace sluice
