// Requests to an LLM: how texts end, log-probabilities, cancellation, and errors for bad requests.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::kTinyLlama;
using testing::random_tokens;
using testing::tiny_options;

SamplingParams greedy(int32_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = max_tokens;
  return params;
}

// Expects an Error of that code whose text has every one of `parts`.
void expect_error(const std::function<void()>& call, ErrorCode code,
                  const std::vector<std::string>& parts) {
  try {
    call();
    FAIL() << "no error, expected one with: " << parts[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
  }
}

class Requests : public ::testing::Test {
 protected:
  LLM llm_{tiny_options(kTinyLlama)};
  const std::vector<int32_t> prompt_ = random_tokens(30, 3);

  RequestOutput run(const SamplingParams& params) { return llm_.generate({prompt_}, params)[0]; }
};

TEST_F(Requests, EndAtMaxTokens) {
  const RequestOutput output = run(greedy(9));
  EXPECT_EQ(output.token_ids.size(), 9u);
  EXPECT_EQ(output.finish_reason, FinishReason::kLength);
  EXPECT_EQ(output.prompt_token_ids, prompt_);
}

TEST_F(Requests, EndAtAStopIdWhichIsNoPartOfTheText) {
  const RequestOutput whole = run(greedy(12));
  SamplingParams params = greedy(12);
  params.stop_token_ids = {whole.token_ids[5]};
  const RequestOutput output = run(params);
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
  EXPECT_EQ(output.token_ids.back(), whole.token_ids[5]);
  EXPECT_LE(output.token_ids.size(), 6u);
  EXPECT_EQ(whole.text.substr(0, output.text.size()), output.text);
}

TEST_F(Requests, MinTokensHoldsBackTheEnd) {
  const RequestOutput whole = run(greedy(12));
  SamplingParams params = greedy(12);
  params.stop_token_ids = {whole.token_ids[0]};
  EXPECT_EQ(run(params).token_ids.size(), 1u);
  params.min_tokens = 6;
  const RequestOutput output = run(params);
  EXPECT_GE(output.token_ids.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_NE(output.token_ids[i], whole.token_ids[0]) << i;
}

TEST_F(Requests, EndAtAStopStringAcrossTokens) {
  const RequestOutput whole = run(greedy(24));
  ASSERT_GE(whole.text.size(), 12u);
  SamplingParams params = greedy(24);
  params.stop = {whole.text.substr(4, 5)};  // a token is at most a byte here: it spans several
  std::string shown;
  GenerateOptions options;
  options.on_output = [&](size_t, const RequestOutput& output) { shown += output.text; };
  const RequestOutput output = llm_.generate({prompt_}, params, options)[0];
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
  EXPECT_EQ(output.stop_reason, params.stop[0]);
  EXPECT_EQ(output.text, whole.text.substr(0, whole.text.find(params.stop[0])));
  EXPECT_EQ(shown, output.text) << "part of a stop string was shown";
}

TEST_F(Requests, LogprobsAreOfTheChosenTokenAndSorted) {
  SamplingParams params = greedy(5);
  params.logprobs = 4;
  for (const auto& step : run(params).logprobs) {
    ASSERT_EQ(step.size(), 5u);
    EXPECT_EQ(step[0].token_id, step[1].token_id) << "greedy takes the most likely";
    EXPECT_EQ(step[0].logprob, step[1].logprob);
    for (size_t i = 2; i < step.size(); ++i) EXPECT_GE(step[i - 1].logprob, step[i].logprob);
  }
}

TEST_F(Requests, CancellationKeepsTheTextSoFar) {
  const RequestOutput whole = run(greedy(50));
  int num_steps = 0;
  GenerateOptions options;
  options.should_cancel = [&] { return num_steps++ == 10; };
  const RequestOutput output = llm_.generate({prompt_}, greedy(50), options)[0];
  EXPECT_EQ(output.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(output.token_ids.size(), 10u);
  EXPECT_EQ(output.text, whole.text.substr(0, output.text.size()));
  EXPECT_FALSE(llm_.has_unfinished());
  EXPECT_EQ(run(greedy(50)).token_ids, whole.token_ids) << "the engine goes on as before";
}

TEST_F(Requests, CancellationInPrefillEndsTheRequest) {
  GenerateOptions options;
  options.should_cancel = [] { return true; };
  const auto outputs = llm_.generate({prompt_, prompt_}, greedy(5), options);
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(outputs[1].finish_reason, FinishReason::kCancelled);
  EXPECT_TRUE(outputs[1].token_ids.empty());
}

TEST_F(Requests, ProgressReachesTheTotals) {
  Progress last;
  GenerateOptions options;
  options.on_progress = [&](const Progress& progress) { last = progress; };
  llm_.generate({prompt_, random_tokens(50, 4)}, greedy(5), options);
  EXPECT_EQ(last.num_finished, 2);
  EXPECT_EQ(last.num_prompt_tokens_done, last.num_prompt_tokens_total);
  EXPECT_EQ(last.num_generated_tokens, 10);
}

TEST_F(Requests, RefuseWhatCanNeverFit) {
  const int64_t limit = llm_.max_model_len();
  expect_error([&] { llm_.generate({random_tokens(limit, 1)}, greedy(1)); }, ErrorCode::kDoesNotFit,
               {std::to_string(limit), "max_model_len", "shorten"});
  expect_error([&] { llm_.generate({prompt_}, greedy(static_cast<int32_t>(limit))); },
               ErrorCode::kDoesNotFit, {"max_tokens is " + std::to_string(limit)});
  // The longest request that fits must run to its end without a failed check at the last token.
  EXPECT_EQ(llm_.generate({random_tokens(limit - 2, 1)}, greedy(2))[0].token_ids.size(), 2u);
}

TEST_F(Requests, RefuseBadPromptsAndNameTheirPlace) {
  expect_error([&] { llm_.generate({std::vector<int32_t>{}}, greedy(1)); },
               ErrorCode::kInvalidArgument, {"prompt has no tokens"});
  expect_error(
      [&] {
        llm_.generate({std::vector<int32_t>{1, 160}}, greedy(1));
      },
      ErrorCode::kInvalidArgument, {"160", "vocabulary"});
  expect_error(
      [&] {
        llm_.generate({prompt_, std::vector<int32_t>{-1}}, greedy(1));
      },
      ErrorCode::kInvalidArgument, {"prompt 1", "-1"});
  EXPECT_FALSE(llm_.has_unfinished()) << "a refused call leaves nothing behind";
}

TEST_F(Requests, RefuseBadParameters) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto refused = [&](const char* name, const std::function<void(SamplingParams&)>& change) {
    SamplingParams params = greedy(4);
    change(params);
    expect_error([&] { run(params); }, ErrorCode::kInvalidArgument, {name});
  };
  refused("temperature is nan", [&](SamplingParams& p) { p.temperature = nan; });
  refused("temperature is -1", [](SamplingParams& p) { p.temperature = -1; });
  refused("temperature is inf", [](SamplingParams& p) { p.temperature = HUGE_VALF; });
  refused("top_p is 0", [](SamplingParams& p) { p.top_p = 0; });
  refused("top_p is nan", [&](SamplingParams& p) { p.top_p = nan; });
  refused("top_k is -2", [](SamplingParams& p) { p.top_k = -2; });
  refused("min_p is 1.5", [](SamplingParams& p) { p.min_p = 1.5f; });
  refused("max_tokens is 0", [](SamplingParams& p) { p.max_tokens = 0; });
  refused("min_tokens is 5", [](SamplingParams& p) { p.min_tokens = 5; });
  refused("logprobs is 21", [](SamplingParams& p) { p.logprobs = 21; });
  refused("stop has an empty string", [](SamplingParams& p) { p.stop = {""}; });
  refused("stop_token_ids", [](SamplingParams& p) { p.stop_token_ids.assign(64, 5); });
  refused("stop_token_ids has 160", [](SamplingParams& p) { p.stop_token_ids = {5, 160}; });
  refused("stop_token_ids has -1", [](SamplingParams& p) { p.stop_token_ids = {-1}; });
}

TEST(EngineOptionsTest, RefuseWhatIsImpossible) {
  const auto refused = [](ErrorCode code, const std::vector<std::string>& parts,
                          const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = tiny_options(kTinyLlama);
    change(options);
    expect_error([&] { LLM{options}; }, code, parts);
  };
  const auto kBad = ErrorCode::kInvalidArgument;
  refused(kBad, {"block_size", "24"}, [](EngineOptions& o) { o.kv.block_size = 24; });
  refused(kBad, {"block_size", "8"}, [](EngineOptions& o) { o.kv.block_size = 8; });
  refused(kBad, {"max_model_len is 513", "512"}, [](EngineOptions& o) { o.max_model_len = 513; });
  refused(kBad, {"max_num_seqs is 0"}, [](EngineOptions& o) { o.max_num_seqs = 0; });
  refused(kBad, {"load_format is 2, which is none of: auto, dummy"},
          [](EngineOptions& o) { o.load_format = static_cast<LoadFormat>(2); });
  refused(kBad, {"sparse_policy is 'qest'", "full"},
          [](EngineOptions& o) { o.sparse.policy = "qest"; });
  refused(kBad, {"tpu"}, [](EngineOptions& o) { o.device = "tpu"; });
  refused(kBad, {"prefill_chunk_tokens is 65", "64"}, [](EngineOptions& o) {
    o.max_num_batched_tokens = 64;
    o.prefill_chunk_tokens = 65;
  });
  refused(kBad, {"gpu_memory_utilization"},
          [](EngineOptions& o) { o.gpu_memory_utilization = std::nan(""); });
  refused(ErrorCode::kDoesNotFit, {"max_model_len is 512", "--kv-cache-bytes"},
          [](EngineOptions& o) {
            o.max_model_len = 512;
            o.kv.cache_bytes = 1 << 16;
          });
  refused(ErrorCode::kDoesNotFit, {"GiB"},
          [](EngineOptions& o) { o.kv.cache_bytes = size_t{1} << 50; });
  refused(ErrorCode::kModel, {"no-such-dir"}, [](EngineOptions& o) { o.model = "no-such-dir"; });
}

// The next token of a text is the same whether the text was a prompt or was fed token by token,
// across two block borders.
TEST(ReplaceLastToken, DecodesAGivenText) {
  const std::vector<int32_t> text = random_tokens(75, 11);
  constexpr int64_t kPromptTokens = 30;
  LlmEngine engine(tiny_options(kTinyLlama), nullptr);
  SamplingParams params = greedy(46);
  params.logprobs = 4;
  const SequenceId id = engine.add_request({text.begin(), text.begin() + kPromptTokens}, params);
  RequestOutput decoded = engine.step()[0];
  for (size_t i = kPromptTokens; i < text.size(); ++i) {
    engine.replace_last_token(id, text[i]);
    decoded = engine.step()[0];
  }
  EXPECT_TRUE(decoded.finished());

  LlmEngine fresh(tiny_options(kTinyLlama), nullptr);
  params.max_tokens = 1;
  fresh.add_request(text, params);
  const RequestOutput expected = fresh.step()[0];
  // On a GPU products of a prompt's height round differently.
  const float tolerance = testing::testing_cpu() ? 0.0f : 0.1f;
  ASSERT_EQ(decoded.logprobs.size(), 1u);
  ASSERT_EQ(decoded.logprobs.back().size(), expected.logprobs[0].size());
  for (size_t i = 0; i < expected.logprobs[0].size(); ++i) {
    EXPECT_NEAR(decoded.logprobs.back()[i].logprob, expected.logprobs[0][i].logprob, tolerance);
  }
  if (testing::testing_cpu()) {
    EXPECT_EQ(decoded.token_ids.back(), expected.token_ids[0]);
  }
}

// Both compute without the scheduler. A request that waits or runs is an error of the caller; the
// request and the engine go on.
TEST_F(Requests, ScoreAndTraceNeedAnEngineWithoutThem) {
  llm_.add_request(prompt_, greedy(2));
  for (const char* counts : {"0 requests run and 1 wait", "1 requests run and 0 wait"}) {
    const auto expect_refused = [&](const std::function<void()>& call) {
      expect_error(call, ErrorCode::kInvalidArgument, {counts, "has_unfinished()"});
    };
    expect_refused([&] { llm_.score(prompt_); });
    expect_refused([&] { llm_.score(prompt_, {.decode_after = 5}); });
    expect_refused([&] { llm_.trace(prompt_, {}); });
    llm_.step();
  }
  while (llm_.has_unfinished()) llm_.step();
  EXPECT_EQ(llm_.score(prompt_).size(), prompt_.size() - 1);
}

TEST(EngineOptionsTest, ReducesTheLengthToWhatFitsAndSaysSo) {
  EngineOptions options = tiny_options(kTinyLlama);
  options.kv.cache_bytes = 10 * 2 * 2 * 4 * 16 * 16 * 2;  // 10 blocks of 16 tokens
  LLM llm(options);
  EXPECT_EQ(llm.max_model_len(), 160);
  bool said = false;
  for (const std::string& warning : llm.warnings()) {
    said = said || warning.find("max_model_len is 160 instead of 512") != std::string::npos;
  }
  EXPECT_TRUE(said);
}

}  // namespace
}  // namespace sluice
