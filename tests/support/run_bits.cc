// Running jobs and comparing bits.
#include "support/run_bits.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <gtest/gtest.h>

#include "sluice/llm.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {
namespace {

// Compares the tokens that both lists contain; the ends of the two lists may differ.
void expect_near(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b, float nats,
                 const std::string& what) {
  size_t num_common = 0;
  for (const TokenLogprob& x : a) {
    for (const TokenLogprob& y : b) {
      if (x.token_id != y.token_id) continue;
      ++num_common;
      EXPECT_NEAR(x.logprob, y.logprob, nats) << what << ", token " << x.token_id;
    }
  }
  EXPECT_GE(num_common, a.size() / 2) << what << ": the most likely tokens are others";
}

void expect_alike(const RequestOutput& a, const RequestOutput& b, float nats,
                  const std::string& what) {
  for (size_t step = 0; step < std::min(a.logprobs.size(), b.logprobs.size()); ++step) {
    expect_near(a.logprobs[step], b.logprobs[step], nats, what + ", step " + std::to_string(step));
    if (a.token_ids[step] != b.token_ids[step]) return;
  }
  EXPECT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
}

}  // namespace

SamplingParams sampled(int32_t max_tokens, int64_t seed) {
  SamplingParams params;
  params.temperature = 0.9f;
  params.top_p = 0.95f;
  params.seed = seed;
  params.ignore_eos = true;
  params.max_tokens = max_tokens;
  params.logprobs = kMaxLogprobs;
  params.output_kind = OutputKind::kFinalOnly;
  return params;
}

void expect_same_bits(const RequestOutput& a, const RequestOutput& b, const std::string& what) {
  ASSERT_EQ(a.token_ids, b.token_ids) << what;
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size()) << what;
  for (size_t step = 0; step < a.logprobs.size(); ++step) {
    ASSERT_EQ(a.logprobs[step].size(), b.logprobs[step].size()) << what;
    for (size_t i = 0; i < a.logprobs[step].size(); ++i) {
      const TokenLogprob& x = a.logprobs[step][i];
      const TokenLogprob& y = b.logprobs[step][i];
      ASSERT_EQ(x.token_id, y.token_id) << what << ", step " << step;
      ASSERT_EQ(std::bit_cast<uint32_t>(x.logprob), std::bit_cast<uint32_t>(y.logprob))
          << what << ", step " << step << ": " << x.logprob << " and " << y.logprob;
    }
  }
}

void expect_all_same(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                     const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    expect_same_bits(a[i], b[i], what + ", job " + std::to_string(i));
  }
}

void expect_all_alike(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                      const std::string& what, float nats) {
  if (testing_cpu()) return expect_all_same(a, b, what);
  expect_all_near(a, b, what, nats);
}

void expect_all_near(const std::vector<RequestOutput>& a, const std::vector<RequestOutput>& b,
                     const std::string& what, float nats) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    expect_alike(a[i], b[i], nats, what + ", job " + std::to_string(i));
  }
}

std::vector<RequestOutput> run_engine(const EngineOptions& options, const std::vector<Job>& jobs) {
  LLM llm(options);
  return run_jobs(llm, jobs);
}

std::vector<RequestOutput> run_jobs(LLM& llm, const std::vector<Job>& jobs) {
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (const Job& job : jobs) {
    prompts.emplace_back(job.prompt);
    params.push_back(job.params);
  }
  return llm.generate(prompts, params);
}

std::vector<RequestOutput> run_jobs(LlmEngine& engine, const std::vector<Job>& jobs) {
  std::vector<int64_t> ids;
  for (const Job& job : jobs) ids.push_back(engine.add_request(job.prompt, job.params).value);
  std::vector<RequestOutput> outputs(jobs.size());
  while (engine.has_unfinished()) {
    for (RequestOutput& output : engine.step()) {
      outputs[static_cast<size_t>(output.request_id - ids.front())] = std::move(output);
    }
  }
  return outputs;
}

void run_steps(LlmEngine& engine, int count, std::vector<RequestOutput>& finished) {
  for (int i = 0; i < count && engine.has_unfinished(); ++i) {
    for (RequestOutput& output : engine.step()) finished.push_back(std::move(output));
  }
}

std::vector<int32_t> second_turn(LLM& llm) {
  std::vector<int32_t> tokens = random_tokens(200, 1);
  const RequestOutput first = llm.generate({tokens}, sampled(30, 1))[0];
  tokens.insert(tokens.end(), first.token_ids.begin(), first.token_ids.end());
  const std::vector<int32_t> question = random_tokens(50, 2);
  tokens.insert(tokens.end(), question.begin(), question.end());
  return tokens;
}

std::function<void(EnginePlan&)> forced_graphs(const EngineOptions& options) {
  return [max_graphs = options.enforce_eager ? 0 : 4](EnginePlan& plan) {
    plan.passes.fixed_decode_shapes = true;
    plan.passes.max_decode_graphs = max_graphs;
  };
}

}  // namespace sluice::testing
