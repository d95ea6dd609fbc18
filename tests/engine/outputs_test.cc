// Outputs of requests: the pieces join to the whole text without repeating it, and each output goes
// to the caller that made the request, also when callbacks throw.
#include <map>
#include <stdexcept>

#include <gtest/gtest.h>

#include "sluice/llm.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_same_bits;
using testing::Job;
using testing::kTinyLlama;
using testing::random_tokens;
using testing::sampled;
using testing::tiny_options;

Job delta_job(int64_t num_prompt_tokens, int32_t max_tokens, int64_t seed) {
  Job job{random_tokens(num_prompt_tokens, static_cast<uint64_t>(seed)), sampled(max_tokens, seed)};
  job.params.output_kind = OutputKind::kDelta;
  return job;
}

// The size of an output: the sum of the lengths of its parts.
size_t carried(const RequestOutput& output) {
  size_t num = output.prompt_token_ids.size() + output.token_ids.size() + output.text.size();
  for (const auto& candidates : output.logprobs) num += candidates.size();
  return num;
}

void expect_equal(const RequestOutput& a, const RequestOutput& b, const std::string& what) {
  expect_same_bits(a, b, what);
  EXPECT_EQ(a.text, b.text) << what;
  EXPECT_EQ(a.prompt_token_ids, b.prompt_token_ids) << what;
  EXPECT_EQ(a.num_cached_tokens, b.num_cached_tokens) << what;
  EXPECT_EQ(a.finish_reason, b.finish_reason) << what;
  EXPECT_EQ(a.stop_reason, b.stop_reason) << what;
}

using Answers = std::map<int64_t, RequestOutput>;  // by request id

Answers drain(LLM& llm) {
  Answers answers;
  while (llm.has_unfinished()) {
    for (RequestOutput& output : llm.step()) {
      EXPECT_FALSE(answers[output.request_id].finished()) << "an output after the last one";
      answers[output.request_id].append(std::move(output));
    }
  }
  return answers;
}

RequestOutput alone(const Job& job) {
  return testing::run_engine(tiny_options(kTinyLlama), {job})[0];
}

// ---- Pieces -----------------------------------------------------------------------------------

// Counts sizes: outputs that repeat earlier text would add up to a quadratic size.
TEST(Outputs, PiecesTogetherCarryAsMuchAsTheWhole) {
  for (const int32_t max_tokens : {1, 20, 160}) {
    LLM llm(tiny_options(kTinyLlama));
    const Job job = delta_job(30, max_tokens, 3);
    const int64_t id = llm.add_request(job.prompt, job.params);
    RequestOutput whole;
    size_t num_carried = 0;
    int32_t num_outputs = 0;
    while (llm.has_unfinished()) {
      const std::vector<RequestOutput> outputs = llm.step();
      ASSERT_EQ(outputs.size(), 1u);
      EXPECT_EQ(outputs[0].request_id, id);
      EXPECT_EQ(outputs[0].token_ids.size(), 1u) << "a step decodes one token";
      EXPECT_EQ(outputs[0].prompt_token_ids.empty(), !outputs[0].finished());
      num_carried += carried(outputs[0]);
      ++num_outputs;
      whole.append(outputs[0]);
    }
    EXPECT_EQ(num_outputs, max_tokens);
    EXPECT_EQ(num_carried, carried(whole));
    expect_equal(whole, alone(job), std::to_string(max_tokens) + " tokens");
  }
}

TEST(Outputs, OnOutputIsGivenThePiecesOfWhatGenerateReturns) {
  LLM llm(tiny_options(kTinyLlama));
  Job jobs[] = {delta_job(30, 40, 1), delta_job(50, 9, 2)};
  jobs[0].params.stop = {alone(jobs[0]).text.substr(20, 4)};  // held back until it is complete
  std::vector<RequestOutput> joined(2);
  size_t num_carried = 0;
  GenerateOptions options;
  options.on_output = [&](size_t index, const RequestOutput& output) {
    num_carried += carried(output);
    joined.at(index).append(output);
  };
  const auto outputs =
      llm.generate({jobs[0].prompt, jobs[1].prompt}, {jobs[0].params, jobs[1].params}, options);
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(num_carried, carried(outputs[0]) + carried(outputs[1]));
  for (size_t i = 0; i < 2; ++i) expect_equal(joined[i], outputs[i], std::to_string(i));
}

TEST(Outputs, FinalOnlyIsOneOutput) {
  LLM llm(tiny_options(kTinyLlama));
  Job job = delta_job(30, 20, 3);
  job.params.output_kind = OutputKind::kFinalOnly;
  llm.add_request(job.prompt, job.params);
  std::vector<RequestOutput> outputs;
  while (llm.has_unfinished()) {
    for (RequestOutput& output : llm.step()) outputs.push_back(std::move(output));
  }
  ASSERT_EQ(outputs.size(), 1u);
  expect_equal(outputs[0], alone(job), "final only");
}

// Text that was held back for a stop string comes with the last output.
TEST(Outputs, CancellationBringsWhatWasHeldBack) {
  const std::string text = alone(delta_job(30, 40, 3)).text;
  for (const OutputKind kind : {OutputKind::kDelta, OutputKind::kFinalOnly}) {
    LLM llm(tiny_options(kTinyLlama));
    Job job = delta_job(30, 40, 3);
    job.params.output_kind = kind;
    job.params.stop = {text.substr(0, 200) + "and something that never comes"};
    const int64_t id = llm.add_request(job.prompt, job.params);
    RequestOutput joined;
    for (int i = 0; i < 25; ++i) {
      for (RequestOutput& output : llm.step()) joined.append(std::move(output));
    }
    EXPECT_EQ(joined.text, "") << "all of it may be the stop string's beginning";
    llm.cancel_request(id);
    joined.append(llm.step().at(0));
    EXPECT_EQ(joined.finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(joined.token_ids.size(), 25u);
    EXPECT_FALSE(joined.text.empty());
    EXPECT_EQ(joined.text, text.substr(0, joined.text.size()));
  }
}

// ---- Requests of other callers ----------------------------------------------------------------

class OtherRequests : public ::testing::Test {
 protected:
  OtherRequests() {
    for (const Job& job : others_) ids_.push_back(llm_.add_request(job.prompt, job.params));
  }

  // Requests that were added before must end with the answers that they give alone.
  void expect_others_whole(const Answers& answers) const {
    ASSERT_EQ(answers.size(), others_.size());
    for (size_t i = 0; i < others_.size(); ++i) {
      const RequestOutput& answer = answers.at(ids_[i]);
      EXPECT_EQ(answer.prompt_token_ids, others_[i].prompt);
      EXPECT_EQ(answer.finish_reason, FinishReason::kLength);
      expect_all_alike({answer}, {alone(others_[i])}, "other " + std::to_string(i));
    }
  }

  // Throws from a callback of `generate` and expects that only its own request is dropped.
  void expect_thrown(const GenerateOptions& options) {
    EXPECT_THROW(llm_.generate({own_.prompt}, own_.params, options), std::runtime_error);
    expect_others_whole(drain(llm_));
    EXPECT_FALSE(llm_.has_unfinished());
  }

  LLM llm_{tiny_options(kTinyLlama)};
  const Job own_ = delta_job(40, 12, 9);
  // One request ends while `own_` runs, one continues, one has a single output.
  const std::vector<Job> others_{
      delta_job(20, 3, 1), delta_job(25, 60, 2), {random_tokens(33, 3), sampled(5, 3)}};
  std::vector<int64_t> ids_;
};

TEST_F(OtherRequests, KeepTheirOutputsWhileGenerateRuns) {
  Answers before;
  for (int i = 0; i < 2; ++i) {
    for (RequestOutput& output : llm_.step()) before[output.request_id].append(std::move(output));
  }
  const RequestOutput own = llm_.generate({own_.prompt}, own_.params)[0];
  expect_all_alike({own}, {alone(own_)}, "generate");
  EXPECT_TRUE(llm_.has_unfinished());
  Answers answers = drain(llm_);
  for (auto& [id, rest] : answers) {
    before[id].append(std::move(rest));
  }
  expect_others_whole(before);
}

TEST_F(OtherRequests, AreReturnedAlsoWhenAllHaveEnded) {
  Job longest = own_;
  longest.params.max_tokens = 100;
  llm_.generate({longest.prompt}, longest.params);
  EXPECT_TRUE(llm_.has_unfinished()) << "there are outputs to return";
  std::vector<RequestOutput> outputs = llm_.step();
  EXPECT_FALSE(llm_.has_unfinished());
  Answers answers;
  for (RequestOutput& output : outputs) answers[output.request_id] = std::move(output);
  EXPECT_EQ(outputs.size(), answers.size()) << "one output of each request";
  expect_others_whole(answers);
}

TEST_F(OtherRequests, OutliveACancelledGenerate) {
  int num_asked = 0;
  GenerateOptions options;
  options.should_cancel = [&] { return ++num_asked > 4; };
  EXPECT_EQ(llm_.generate({own_.prompt}, own_.params, options)[0].finish_reason,
            FinishReason::kCancelled);
  expect_others_whole(drain(llm_));
}

TEST_F(OtherRequests, OutliveARefusedGenerate) {
  EXPECT_THROW(llm_.generate({own_.prompt, std::vector<int32_t>{-1}}, own_.params), Error);
  expect_others_whole(drain(llm_));
}

TEST_F(OtherRequests, OutliveCallbacksThatThrow) {
  GenerateOptions options;
  options.on_output = [](size_t, const RequestOutput&) { throw std::runtime_error("on_output"); };
  expect_thrown(options);
}

TEST_F(OtherRequests, OutliveProgressThatThrows) {
  GenerateOptions options;
  options.on_progress = [](const Progress&) { throw std::runtime_error("on_progress"); };
  expect_thrown(options);
}

TEST_F(OtherRequests, OutliveAQuestionThatThrows) {
  GenerateOptions options;
  options.should_cancel = []() -> bool { throw std::runtime_error("should_cancel"); };
  expect_thrown(options);
}

// Within a pass the streams have work, which must be cancelled first.
TEST(Outputs, WhatACallbackThrowsWithinAPassEndsTheCallAndLeavesTheEngineAsNew) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: on a GPU short passes are not watched";
  EngineOptions engine = tiny_options(kTinyLlama);
  engine.kv.offload = KvOffload::kLayerwise;
  engine.max_num_batched_tokens = 512;
  engine.max_model_len = 512;
  LLM llm(engine);
  const Job job{random_tokens(400, 5), sampled(4, 5)};
  bool was_within = false;
  GenerateOptions options;
  options.on_progress = [&](const Progress& progress) {
    was_within = progress.num_prompt_tokens_done < 400;
    throw std::runtime_error("within a pass");
  };
  EXPECT_THROW(llm.generate({job.prompt}, job.params, options), std::runtime_error);
  EXPECT_TRUE(was_within);
  EXPECT_EQ(llm.stats().num_steps, 0) << "the pass was given up";
  EXPECT_FALSE(llm.has_unfinished());
  LLM fresh(engine);
  expect_equal(llm.generate({job.prompt}, job.params)[0],
               fresh.generate({job.prompt}, job.params)[0], "afterwards");
}

}  // namespace
}  // namespace sluice
