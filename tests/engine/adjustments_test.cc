// Penalties, biases and allowed tokens of requests: against numpy, against the same answer asked
// for token by token with the history as bias, and without effect on other requests, wherever KV is
// and whatever happens on the way.
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "ops/reference/sample.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::random_tokens;
using testing::run_engine;
using testing::sampled;
using testing::tiny_options;

constexpr const char* kModel = "qwen3-group2-tied";
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- Against numpy ----------------------------------------------------------------------------

SamplingParams params_of(const nlohmann::json& json) {
  SamplingParams params;
  params.repetition_penalty = json.at("repetition_penalty").get<float>();
  params.frequency_penalty = json.at("frequency_penalty").get<float>();
  params.presence_penalty = json.at("presence_penalty").get<float>();
  for (const auto& [id, bias] : json.at("logit_bias").items()) {
    params.logit_bias[std::stoi(id)] = std::stof(bias.get<std::string>());
  }
  return params;
}

// A view of a test's own vector, for the reference alone.
template <typename T>
TensorView view_of(const std::vector<T>& values) {
  return TensorView(const_cast<T*>(values.data()), kDTypeOf<T>, {std::ssize(values)});
}

// The reference's softmax after adjustments equals numpy's; the op is compared with the reference
// in tests/ops/sample.
void expect_case(const nlohmann::json& json, int index) {
  LogitEntries entries(params_of(json), json.at("prompt").get<std::vector<int32_t>>());
  for (const int32_t id : json.at("output").get<std::vector<int32_t>>()) entries.append(id);
  const auto logits = json.at("logits").get<std::vector<float>>();
  const std::vector<int32_t> begin{0, static_cast<int32_t>(entries.size())};
  std::vector<int32_t> mask{0};
  SampleRow row{.temperature = 1.0f};
  if (!json.at("allowed_token_ids").is_null()) {
    row.mask = 0;
    for (const int32_t id : json.at("allowed_token_ids")) mask[0] |= 1 << id;
  }
  SampleArgs args;
  args.logits = view_of(logits).reshape({1, std::ssize(logits)});
  args.rows = TensorView(&row, DType::kU8, {1, sizeof(SampleRow)});
  args.masks = view_of(mask).reshape({1, 1});
  args.adjustments = {.begin = view_of(begin),
                      .ids = view_of(entries.ids()),
                      .bias = view_of(entries.biases()),
                      .repetition = view_of(entries.repetitions()),
                      .penalty = view_of(entries.penalties()),
                      .scratch = {}};
  const reference::KeptTokens kept = reference::kept_tokens(args, 0);
  std::vector<double> probabilities(logits.size(), 0.0);
  for (size_t i = 0; i < kept.ids.size(); ++i) {
    probabilities[static_cast<size_t>(kept.ids[i])] = kept.probabilities[i];
  }
  const auto expected = json.at("probabilities").get<std::vector<double>>();
  for (size_t id = 0; id < expected.size(); ++id) {
    // Logits up to 200 in f32, some roundings of half a unit each.
    EXPECT_NEAR(probabilities[id], expected[id], 1e-4 * expected[id] + 1e-300)
        << "case " << index << ", token " << id;
  }
}

TEST(Penalties, EqualNumpys) {
  const nlohmann::json json =
      read_json_file(testing::source_dir() / "tests/golden/sampling/penalties.json");
  int index = 0;
  for (const nlohmann::json& one : json.at("cases")) expect_case(one, index++);
  EXPECT_EQ(index, 48);
}

// ---- In the engine ----------------------------------------------------------------------------

Job penalised(int64_t num_prompt_tokens, int32_t max_tokens, int64_t seed) {
  Job job{random_tokens(num_prompt_tokens, static_cast<uint64_t>(seed)), sampled(max_tokens, seed)};
  job.params.repetition_penalty = 1.4f;
  job.params.frequency_penalty = 0.6f;
  job.params.presence_penalty = -0.4f;
  job.params.logit_bias = {{3, 2.0f}, {50, -kInfinity}, {90, -1.0f}};
  return job;
}

// Penalised, restricted and plain requests in turn.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (int64_t i = 0; i < 9; ++i) {
    Job job = penalised(20 + 9 * i, 40, i);
    if (i % 3 == 0) job.params = sampled(40, i);
    if (i % 3 == 1) job.params.allowed_token_ids = random_tokens(30, static_cast<uint64_t>(i));
    jobs.push_back(job);
  }
  return jobs;
}

std::vector<RequestOutput> run_alone(const std::vector<Job>& jobs) {
  std::vector<RequestOutput> outputs;
  for (const Job& job : jobs) outputs.push_back(run_engine(tiny_options(kModel), {job})[0]);
  return outputs;
}

// A request of n tokens equals n requests of one token: there the answer so far is prompt, and its
// penalties are biases that the test computes. Bit for bit on the CPU.
TEST(Penalties, EqualBiasesComputedFromTheAnswerSoFar) {
  Job whole = penalised(30, 24, 5);
  whole.params.repetition_penalty = 1.0f;  // applied after the bias, so no bias replaces it
  LLM llm(tiny_options(kModel));
  const RequestOutput expected = testing::run_jobs(llm, {whole})[0];
  std::map<int32_t, int> counts;
  Job step = whole;
  step.params.frequency_penalty = step.params.presence_penalty = 0.0f;
  step.params.max_tokens = 1;
  RequestOutput all;
  for (int i = 0; i < 24; ++i) {
    step.params.logit_bias = whole.params.logit_bias;
    for (const auto& [id, count] : counts) {
      step.params.logit_bias[id] -= 0.6f * static_cast<float>(count) - 0.4f;
    }
    RequestOutput next = testing::run_jobs(llm, {step})[0];
    ASSERT_EQ(next.token_ids.size(), 1u);
    step.prompt.push_back(next.token_ids[0]);
    ++counts[next.token_ids[0]];
    all.append(std::move(next));
  }
  expect_all_alike({all}, {expected}, "token by token");
}

TEST(Penalties, RepetitionCountsThePromptLikeTheAnswer) {
  Job whole{random_tokens(30, 6), sampled(24, 6)};
  whole.params.repetition_penalty = 1.6f;
  LLM llm(tiny_options(kModel));
  const RequestOutput expected = testing::run_jobs(llm, {whole})[0];
  Job step = whole;
  step.params.max_tokens = 1;
  RequestOutput all;
  for (int i = 0; i < 24; ++i) {
    RequestOutput next = testing::run_jobs(llm, {step})[0];
    step.prompt.push_back(next.token_ids[0]);
    all.append(std::move(next));
  }
  expect_all_alike({all}, {expected}, "token by token");
  Job plain = whole;
  plain.params.repetition_penalty = 1.0f;
  EXPECT_NE(testing::run_jobs(llm, {plain})[0].token_ids, expected.token_ids);
}

TEST(Penalties, HaveASign) {
  LLM llm(tiny_options(kModel));
  const auto distinct = [&](float frequency) {
    Job job{random_tokens(30, 7), sampled(60, 7)};
    job.params.frequency_penalty = frequency;
    const std::vector<int32_t> ids = testing::run_jobs(llm, {job})[0].token_ids;
    return std::set<int32_t>(ids.begin(), ids.end()).size();
  };
  EXPECT_GT(distinct(2.0f), distinct(0.0f));
  EXPECT_LT(distinct(-2.0f), distinct(0.0f));
}

TEST(Penalties, BanningAllOtherTokensEqualsAllowingOne) {
  const int32_t only = 77;
  Job banned{random_tokens(30, 8), sampled(10, 8)};
  Job allowed = banned;
  for (int32_t id = 0; id < 160; ++id) {
    if (id != only) banned.params.logit_bias[id] = -kInfinity;
  }
  allowed.params.allowed_token_ids = {only};
  LLM llm(tiny_options(kModel));
  ASSERT_EQ(llm.trace({1}, {}).logits.shape[1], 160);
  const std::vector<RequestOutput> outputs = testing::run_jobs(llm, {banned, allowed});
  EXPECT_EQ(outputs[0].token_ids, std::vector<int32_t>(10, only));
  testing::expect_same_bits(outputs[0], outputs[1], "banned and allowed");
}

// Log-probabilities are those of the model: a bias changes which token comes, not its number.
TEST(Penalties, DoNotChangeLogProbabilities) {
  LLM llm(tiny_options(kModel));
  Job plain{random_tokens(40, 9), sampled(1, 9)};
  Job biased = plain;
  biased.params.logit_bias = {{77, 100.0f}};
  const std::vector<RequestOutput> outputs = testing::run_jobs(llm, {plain, biased});
  EXPECT_EQ(outputs[1].token_ids[0], 77);
  const std::vector<TokenLogprob>& a = outputs[0].logprobs[0];
  const std::vector<TokenLogprob>& b = outputs[1].logprobs[0];
  for (size_t i = 1; i < a.size(); ++i) {  // entry 0 is the chosen token
    EXPECT_EQ(a[i].token_id, b[i].token_id);
    EXPECT_EQ(a[i].logprob, b[i].logprob);
  }
}

// ---- Invariants 5 to 7 and 9 ------------------------------------------------------------------

class AdjustedRequests : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { reference_ = run_alone(make_jobs()); }
  static void TearDownTestSuite() { reference_.clear(); }
  static inline std::vector<RequestOutput> reference_;
};

TEST_F(AdjustedRequests, AloneEqualBatched) {
  expect_all_alike(run_engine(tiny_options(kModel), make_jobs()), reference_, "batched");
}

TEST_F(AdjustedRequests, ChunksDoNotMatter) {
  EngineOptions options = tiny_options(kModel);
  options.prefill_chunk_tokens = 7;
  expect_all_alike(run_engine(options, make_jobs()), reference_, "chunks");
}

TEST_F(AdjustedRequests, PreemptionLosesNothing) {
  EngineOptions options = tiny_options(kModel);
  options.enable_prefix_caching = false;
  const size_t block_bytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // layers, K and V, heads, ...
  options.kv.cache_bytes = 20 * block_bytes;
  options.max_model_len = 256;
  LLM llm(options);
  expect_all_alike(testing::run_jobs(llm, make_jobs()), reference_, "preempted");
  EXPECT_GT(llm.stats().num_preemptions, 0);
}

TEST_F(AdjustedRequests, ThePlaceOfKvDoesNotMatter) {
  for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
    EngineOptions options = tiny_options(kModel);
    options.kv.offload = mode;
    options.kv.host_bytes = 4 << 20;
    options.kv.num_slots = 2;
    options.kv.slot_blocks = 1;
    expect_all_alike(run_engine(options, make_jobs()), reference_, "offloaded");
  }
}

// Graphs read the lists of the step that they replay.
TEST_F(AdjustedRequests, GraphsEqualStepsLaunchedOneByOne) {
  EngineOptions options = tiny_options(kModel);
  std::vector<RequestOutput> outputs[2];
  for (const bool eager : {false, true}) {
    options.enforce_eager = eager;
    LlmEngine engine(options, {.device = testing::make_test_device(),
                               .policies = make_policies("full"),
                               .adjust_plan = testing::forced_graphs(options)});
    const int64_t num_allocations = engine.device().num_allocations();
    outputs[eager ? 1 : 0] = testing::run_jobs(engine, make_jobs());
    EXPECT_EQ(engine.stats().num_graph_launches > 20, !eager);
    EXPECT_EQ(engine.device().num_allocations(), num_allocations);
  }
  expect_all_same(outputs[0], outputs[1], "graphs");
  expect_all_alike(outputs[0], reference_, "graphs, alone");
}

// A model of 8,192 tokens and two sequences: the arrays hold 8,192 entries, so that two long lists
// take a part each.
TEST(Penalties, ListsThatDoNotFitTogetherAreSampledInParts) {
  const TempDir dir;
  nlohmann::json config =
      read_json_file(testing::source_dir() / "tests/golden/models" / kModel / "config.json");
  config["vocab_size"] = 8192;
  dir.write("config.json", config.dump());
  EngineOptions options = tiny_options(kModel);
  options.model = dir.path();
  options.load_format = LoadFormat::kDummy;
  options.max_num_seqs = 3;
  std::vector<Job> jobs;
  for (int64_t i = 0; i < 3; ++i) {
    Job job{random_tokens(20, static_cast<uint64_t>(i)), sampled(12, i)};
    if (i != 1) {
      job.params.frequency_penalty = 0.5f;
      for (int32_t id = 0; id < 5000; ++id) {
        job.params.logit_bias[id] = static_cast<float>((id + i) % 7);
      }
    }
    jobs.push_back(job);
  }
  for (const bool graphs : {false, true}) {
    options.enforce_eager = !graphs;
    const auto run = [&](const std::vector<Job>& some) {
      LlmEngine engine(options,
                       {.device = testing::make_test_device(),
                        .policies = make_policies("full"),
                        .adjust_plan = graphs ? testing::forced_graphs(options) : nullptr});
      return testing::run_jobs(engine, some);
    };
    std::vector<RequestOutput> alone;
    for (const Job& job : jobs) alone.push_back(run({job})[0]);
    expect_all_alike(run(jobs), alone, graphs ? "parts with graphs" : "parts");
  }
}

// ---- Errors -----------------------------------------------------------------------------------

void expect_refused(LLM& llm, const SamplingParams& params, const std::string& text) {
  try {
    llm.add_request(std::vector<int32_t>{1, 2}, params);
    FAIL() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(error.message().find(text), std::string::npos) << error.message();
  }
}

TEST(Penalties, ErrorsNameParameterValueAndRange) {
  LLM llm(tiny_options(kModel));
  const float nan = std::nanf("");
  expect_refused(llm, {.repetition_penalty = 0.0f}, "repetition_penalty is 0, but must be above 0");
  expect_refused(llm, {.repetition_penalty = nan}, "repetition_penalty is nan");
  expect_refused(llm, {.frequency_penalty = 2.5f},
                 "frequency_penalty is 2.5, but must be from -2 to 2");
  expect_refused(llm, {.presence_penalty = -3.0f},
                 "presence_penalty is -3, but must be from -2 to 2");
  expect_refused(llm, {.logit_bias = {{5, 101.0f}}},
                 "logit_bias of token 5 is 101, but must be from -100 to 100, or -inf");
  expect_refused(llm, {.logit_bias = {{5, nan}}}, "logit_bias of token 5 is nan");
  expect_refused(llm, {.logit_bias = {{160, 1.0f}}}, "logit_bias has token id 160");
  expect_refused(llm, {.allowed_token_ids = {{3, -1}}}, "allowed_token_ids has token id -1");
  expect_refused(llm, {.allowed_token_ids = {std::vector<int32_t>{}}},
                 "allowed_token_ids is an empty list");
}

// Such a row would be an error of the device, which ends all requests.
TEST(Penalties, RequestsThatLeaveNoTokenAreRefused) {
  LLM llm(tiny_options(kModel));
  expect_refused(llm, {.logit_bias = {{7, -kInfinity}}, .allowed_token_ids = {{7}}},
                 "leave no token to choose; allow one more");
  SamplingParams ends;
  ends.allowed_token_ids = {9};
  ends.stop_token_ids = {9};
  ends.min_tokens = 2;
  expect_refused(llm, ends, "leave no token to choose before min_tokens");
  ends.min_tokens = 0;
  EXPECT_EQ(llm.generate({std::vector<int32_t>{1, 2}}, ends)[0].token_ids,
            (std::vector<int32_t>{9}));
}

}  // namespace
}  // namespace sluice
