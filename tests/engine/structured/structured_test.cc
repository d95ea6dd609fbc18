// Structured output: every answer that ended by itself is what was asked for, and the same seed
// gives the same answer alone, batched, with drafts, preempted, and wherever KV is.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "engine/speculation/speculative_engine.h"
#include "engine/structured/structured_cases.h"
#include "grammar/grammar.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::KnownTexts;
using testing::kStructuredModel;
using testing::make_engine;
using testing::random_tokens;
using testing::RandomDrafts;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::speculative;
using testing::structured_cases;
using testing::StructuredCase;
using testing::texts_of;
using testing::tiny_options;

class Structured : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    jobs_ = testing::structured_jobs();
    reference_ = run_engine(tiny_options(kStructuredModel), jobs_);
    texts_ = texts_of(jobs_, reference_);
  }
  void SetUp() override {}

  static Job job_of(StructuredOutput structure, int64_t seed = 1) {
    Job job{random_tokens(20, static_cast<uint64_t>(seed)), sampled(40, seed)};
    job.params.ignore_eos = false;
    job.params.structured = std::make_shared<StructuredOutput>(std::move(structure));
    return job;
  }
  // It takes a while to compile.
  static std::string large_schema() {
    std::string names;
    for (int i = 0; i < 150; ++i) {
      names += (i > 0 ? "," : "") + ("\"n" + std::to_string(i) + "\":{}");
    }
    return R"({"type":"object","properties":{)" + names + "}}";
  }
  static std::string error_of(const Job& job) {
    try {
      run_engine(tiny_options(kStructuredModel), {job});
      return {};
    } catch (const Error& error) {
      return error.message();
    }
  }

  static inline std::vector<Job> jobs_;
  static inline std::vector<RequestOutput> reference_;
  static inline std::vector<std::vector<int32_t>> texts_;
};

TEST_F(Structured, AnswersThatEndAreValid) {
  const std::vector<StructuredCase> cases = structured_cases();
  size_t num_ended = 0;
  for (size_t i = 0; i < reference_.size(); ++i) {
    const RequestOutput& output = reference_[i];
    const size_t index = i % (cases.size() + 1);
    if (index == cases.size()) {
      EXPECT_EQ(output.finish_reason, FinishReason::kLength);
      continue;
    }
    EXPECT_NE(output.finish_reason, FinishReason::kError) << output.error;
    if (output.finish_reason != FinishReason::kStop) continue;
    ++num_ended;
    EXPECT_TRUE(cases[index].is_valid(output.text)) << index << ": " << output.text;
  }
  EXPECT_GT(num_ended, jobs_.size() / 2);
}

TEST_F(Structured, AloneAndBatchedAreTheSame) {
  const auto engine = make_engine(tiny_options(kStructuredModel));
  for (size_t i = 0; i < jobs_.size(); i += 7) {
    expect_all_alike(run_jobs(*engine, {jobs_[i]}), {reference_[i]}, "alone");
  }
}

TEST_F(Structured, DraftsChangeNoBit) {
  for (const int32_t num_tokens : {1, 3, 12}) {
    const EngineOptions options = speculative(SpeculativeMethod::kNgram, num_tokens);
    const std::string what = std::to_string(num_tokens) + " tokens, ";
    const auto known = [&](KnownTexts::IsRight is_right) {
      return std::make_unique<KnownTexts>(texts_, std::move(is_right));
    };
    const auto right = make_engine(options, known([](int64_t) { return true; }));
    expect_all_alike(run_jobs(*right, jobs_), reference_, what + "right");
    EXPECT_GT(right->observations().speculation.num_accepted_tokens, 0);
    const auto mostly = make_engine(options, known([](int64_t at) { return at % 3 != 0; }));
    expect_all_alike(run_jobs(*mostly, jobs_), reference_, what + "mostly right");
    const auto random = make_engine(options, std::make_unique<RandomDrafts>());
    expect_all_alike(run_jobs(*random, jobs_), reference_, what + "random");
  }
  const auto ngrams = make_engine(speculative(SpeculativeMethod::kNgram, 4));
  expect_all_alike(run_jobs(*ngrams, jobs_), reference_, "ngrams");
}

TEST_F(Structured, SparseDraftsChangeNoBit) {
  for (const char* name : {"resident", "chunked"}) {
    const testing::Place place = testing::place_of(name);
    const auto engine = make_engine(place.put(speculative(SpeculativeMethod::kSparse, 5)));
    expect_all_alike(run_jobs(*engine, jobs_), reference_, name);
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0) << name;
  }
}

TEST_F(Structured, PreemptionAndPlacesOfKvChangeNoBit) {
  EngineOptions tight = tiny_options(kStructuredModel);
  tight.max_model_len = 160;
  tight.kv.cache_bytes = 24 * testing::kBlockBytes;
  const auto engine = make_engine(tight);
  expect_all_alike(run_jobs(*engine, jobs_), reference_, "preempted");
  EXPECT_GT(engine->stats().num_preemptions, 0);
  for (const char* name : {"layerwise", "blocks of 64"}) {
    const auto other = make_engine(testing::place_of(name).put(tiny_options(kStructuredModel)));
    expect_all_alike(run_jobs(*other, jobs_), reference_, name);
  }
}

// The grammar begins after the token that closes the thought.
TEST_F(Structured, ThoughtsAreFree) {
  StructuredOutput structure{.kind = StructureKind::kChoice, .text = {}, .choices = {"yes", "no"}};
  structure.thought_begin = "<";
  structure.thought_end = ">";
  const auto is_answer = [](const std::string& text) { return text == "yes" || text == "no"; };
  int num_thoughts = 0;
  for (const bool starts_in_thought : {false, true}) {
    structure.starts_in_thought = starts_in_thought;
    for (int64_t seed = 0; seed < 12; ++seed) {
      Job job = job_of(structure, seed);
      job.params.max_tokens = 200;
      job.params.logit_bias = {{'>', 4.0f}, {'<', 1.0f}};
      const RequestOutput output = run_engine(tiny_options(kStructuredModel), {job})[0];
      if (output.finish_reason != FinishReason::kStop) continue;
      const bool has_thought = starts_in_thought || output.text.starts_with('<');
      num_thoughts += has_thought ? 1 : 0;
      const size_t begin = has_thought ? output.text.find('>') + 1 : 0;
      EXPECT_TRUE(is_answer(output.text.substr(begin))) << output.text;
    }
  }
  EXPECT_GT(num_thoughts, 0);
}

// Calls come after the thought, too.
TEST_F(Structured, CallsFollowThoughts) {
  StructuredOutput structure = testing::calls_of(true);
  structure.thought_begin = "(";
  structure.thought_end = ")";
  structure.starts_in_thought = true;
  int num_ended = 0;
  for (int64_t seed = 0; seed < 12; ++seed) {
    Job job = job_of(structure, seed);
    job.params.max_tokens = 200;
    job.params.logit_bias = {{')', 4.0f}};
    const RequestOutput output = run_engine(tiny_options(kStructuredModel), {job})[0];
    if (output.finish_reason != FinishReason::kStop) continue;
    ++num_ended;
    const std::string calls = output.text.substr(output.text.find(')') + 1);
    EXPECT_TRUE(testing::has_whole_calls(calls, true)) << output.text;
  }
  EXPECT_GT(num_ended, 0);
}

TEST_F(Structured, ConflictsAreNamed) {
  const StructuredOutput yes{.kind = StructureKind::kChoice, .text = {}, .choices = {"yes"}};
  Job job = job_of(yes);
  job.params.ignore_eos = true;
  EXPECT_EQ(error_of(job),
            "structured output ends with an end token, which ignore_eos would not; leave one out");
  job = job_of(yes);
  job.params.min_tokens = 3;
  EXPECT_EQ(error_of(job),
            "structured output ends where it is complete, but min_tokens is 3; leave one out");
  const std::string refusal = error_of(job_of(testing::schema_of(R"({"multipleOf":1001})")));
  EXPECT_TRUE(refusal.starts_with("schema: multipleOf at its root of 1001 is not")) << refusal;
  EXPECT_NE(error_of(job_of({.kind = StructureKind::kGrammar, .text = "root ::= missing"})), "");
  StructuredOutput thinks = yes;
  thinks.thought_end = "</think>";
  EXPECT_NE(error_of(job_of(thinks)).find("the token </think>"), std::string::npos);
}

// A request whose biases ban all that its grammar allows ends alone.
TEST_F(Structured, BansOfAllTokensEndTheirRequestAlone) {
  const StructuredOutput choice{.kind = StructureKind::kChoice, .text = {}, .choices = {"yes"}};
  Job banned = job_of(choice);
  banned.params.logit_bias = {{'e', -std::numeric_limits<float>::infinity()}};
  Job limited = job_of(choice);
  limited.params.allowed_token_ids = std::vector<int32_t>{'y', 'x'};
  const Job good = job_of(choice);
  const auto engine = make_engine(tiny_options(kStructuredModel));
  const auto outputs = run_jobs(*engine, {banned, good, limited});
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(outputs[i].finish_reason, FinishReason::kError);
    EXPECT_EQ(outputs[i].text, "y");
    EXPECT_NE(outputs[i].error.find("allowed_token_ids and logit_bias"), std::string::npos);
  }
  EXPECT_EQ(outputs[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(outputs[1].text, "yes");
}

// With graphs the masks of each step are those of the step.
TEST_F(Structured, GraphsChangeNoBit) {
  const EngineOptions options = tiny_options(kStructuredModel);
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                         .adjust_plan = testing::forced_graphs(options)};
  LlmEngine engine(options, std::move(parts));
  expect_all_alike(run_jobs(engine, jobs_), reference_, "graphs");
  EXPECT_GT(engine.stats().num_graph_launches, 0);
}

// Some masks come after the device has waited for it, alone or with drafts.
TEST_F(Structured, LateMasksChangeNoBit) {
  const auto run_late = [](EngineOptions options, std::unique_ptr<DraftSource> drafts) {
    auto count = std::make_shared<std::atomic<int>>(0);
    LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                           .draft_source = std::move(drafts),
                           .before_masks = [count] {
                             if (++*count % 17 != 0) return;
                             std::this_thread::sleep_for(std::chrono::milliseconds(6));
                           }};
    LlmEngine engine(options, std::move(parts));
    return run_jobs(engine, jobs_);
  };
  const EngineOptions options = tiny_options(kStructuredModel);
  expect_all_alike(run_late(options, nullptr), reference_, "resident");
  for (const char* name : {"chunked", "layerwise"}) {
    expect_all_alike(run_late(testing::place_of(name).put(options), nullptr), reference_, name);
  }
  const auto mostly = [](int64_t at) { return at % 3 != 0; };
  expect_all_alike(run_late(speculative(SpeculativeMethod::kNgram, 3),
                            std::make_unique<KnownTexts>(texts_, mostly)),
                   reference_, "drafts");
  expect_all_alike(run_late(speculative(SpeculativeMethod::kSparse, 3), nullptr), reference_,
                   "sparse drafts");
}

// Masks come about when the wait for them ends: then rows of one sequence are all drawn with them,
// or none. One request at a time, so that nothing else is waited for.
TEST_F(Structured, MasksAtTheEndOfTheWaitChangeNoBit) {
  auto count = std::make_shared<std::atomic<int>>(0);
  const auto always = [](int64_t) { return true; };
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                         .draft_source = std::make_unique<KnownTexts>(texts_, always),
                         .before_masks = [count] {
                           const int late_us = ++*count * 37 % 500;
                           std::this_thread::sleep_for(std::chrono::microseconds(1900 + late_us));
                         }};
  LlmEngine engine(speculative(SpeculativeMethod::kNgram, 6), std::move(parts));
  for (size_t i = 0; i < jobs_.size(); i += 3) {
    expect_all_alike(run_jobs(engine, {jobs_[i]}), {reference_[i]}, "alone");
  }
}

struct HeldRun {
  std::vector<RequestOutput> finished;    // in the order of their ends
  std::atomic<bool> was_in_time = false;  // the first request ended while the masks were held
};

// Two requests, of which the second one's masks number `held_mask`, from 1, are made when the first
// one has ended, or after .9 s: masks that take a second end their request.
void run_with_held_masks(const Job& free, const Job& held, int held_mask, HeldRun& run) {
  std::atomic<bool> is_free_done = false;
  std::atomic<int> count = 0;
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                         .before_masks = [&] {
                           if (++count != held_mask) return;
                           for (int i = 0; i < 700 && !is_free_done; ++i) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(1));
                           }
                           run.was_in_time = is_free_done.load();
                         }};
  LlmEngine engine(tiny_options(kStructuredModel), std::move(parts));
  engine.add_request(free.prompt, free.params);
  testing::run_steps(engine, 3, run.finished);  // its prompt is computed
  engine.add_request(held.prompt, held.params);
  while (run.finished.empty()) testing::run_steps(engine, 1, run.finished);
  is_free_done = true;
  testing::run_steps(engine, 1000, run.finished);
}

// A free request ends while the masks of another one are made: the first ones, without which that
// one is in no pass, or later ones, without which it gives no token. It then gives the text that it
// gives without the delay. A shared machine may stand still for .9 s: such a run is repeated.
TEST_F(Structured, MasksHoldUpNoOtherRequest) {
  const Job free{random_tokens(20, 3), sampled(80, 3)};
  for (const int held_mask : {1, 3}) {
    bool was_in_time = false;
    for (int i = 0; i < 5 && !was_in_time; ++i) {
      HeldRun run;
      run_with_held_masks(free, jobs_[0], held_mask, run);
      was_in_time = run.was_in_time;
      if (!was_in_time) continue;
      ASSERT_EQ(run.finished.size(), 2u);
      EXPECT_EQ(run.finished[0].request_id, 0u);
      EXPECT_EQ(run.finished[1].request_id, 1u);
      EXPECT_EQ(run.finished[1].token_ids, reference_[0].token_ids);
    }
    EXPECT_TRUE(was_in_time) << "masks number " << held_mask;
  }
}

TEST_F(Structured, MasksThatTakeASecondEndTheirRequestAlone) {
  std::atomic<int> count = 0;
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                         .before_masks = [&] {
                           if (++count != 3) return;
                           std::this_thread::sleep_for(std::chrono::milliseconds(1300));
                         }};
  LlmEngine engine(tiny_options(kStructuredModel), std::move(parts));
  const Job free{random_tokens(20, 3), sampled(8, 3)};
  const auto outputs = run_jobs(engine, {jobs_[0], free, jobs_[1]});
  int num_failed = 0;
  for (const size_t i : {0, 2}) {
    if (outputs[i].finish_reason != FinishReason::kError) {
      expect_all_alike({outputs[i]}, {reference_[i / 2]}, "beside it");
      continue;
    }
    ++num_failed;
    EXPECT_NE(outputs[i].error.find("not known after 1 s"), std::string::npos) << outputs[i].error;
  }
  EXPECT_EQ(num_failed, 1);
  EXPECT_EQ(outputs[1].finish_reason, FinishReason::kLength);
}

// A request that fails before its grammar is compiled leaves nothing that the end of the
// compilation would look at.
TEST_F(Structured, RequestsMayFailWhileTheirGrammarIsCompiled) {
  StructuredOutput structure = testing::schema_of(large_schema());
  structure.thought_end = ">";
  structure.starts_in_thought = true;
  Job job = job_of(std::move(structure));
  job.params.allowed_token_ids = std::vector<int32_t>{1};  // the end token, which ends no thought
  const auto engine = make_engine(tiny_options(kStructuredModel));
  const auto outputs = run_jobs(*engine, {job});
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kError);
  EXPECT_NE(outputs[0].error.find("leave no token"), std::string::npos) << outputs[0].error;
  expect_all_alike(run_jobs(*engine, {jobs_[0]}), {reference_[0]}, "after it");
}

// A structure that is still compiled does not hold up a request that has none, and may be given up.
TEST_F(Structured, CompilationHoldsUpNoOtherRequest) {
  const auto engine = make_engine(tiny_options(kStructuredModel));
  const Job slow = job_of(testing::schema_of(large_schema()));
  Job free{random_tokens(20, 3), sampled(5, 3)};
  const SequenceId waiting = engine->add_request(slow.prompt, slow.params);
  engine->add_request(free.prompt, free.params);
  std::vector<RequestOutput> finished;
  testing::run_steps(*engine, 1000, finished);
  EXPECT_EQ(finished.size(), 2u);
  const SequenceId given_up = engine->add_request(slow.prompt, slow.params);
  engine->cancel_request(given_up);
  EXPECT_NE(given_up.value, waiting.value);
  testing::run_steps(*engine, 10, finished);
  EXPECT_EQ(finished.back().finish_reason, FinishReason::kCancelled);
}

}  // namespace
}  // namespace sluice
