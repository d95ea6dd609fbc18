// Several ranks: the model that they have together is that of one rank, up to the place where sums
// are rounded; and with as many ranks nothing that the engine promises changes a bit.
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/policy_names.h"
#include "device/collectives.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "support/fp8_models.h"
#include "support/integer_models.h"
#include "support/loaded_weights.h"
#include "support/rank_run.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"
#include "support/weight_copies.h"

namespace sluice {
namespace {

using testing::expect_all_near;
using testing::expect_all_same;
using testing::Golden;
using testing::Job;
using testing::median_nmse;
using testing::near_tie_nats;
using testing::nmse;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::tiny_options;
using testing::with_offload;

int32_t most_ranks() { return testing::can_have(4) ? 4 : testing::can_have(2) ? 2 : 1; }

// Products of experts on GPUs have widths that are multiples of 8.
bool runs_here(const std::string& model) {
  return testing::testing_cpu() || model.find("experts") == std::string::npos;
}

using Ranks = testing::RanksTest;
using RanksOfFormats = Ranks;

EngineOptions with_ranks(EngineOptions options, int32_t num_ranks) {
  options.tensor_parallel_size = num_ranks;
  return options;
}

std::vector<float> logits_of(const EngineOptions& options, const std::vector<int32_t>& tokens) {
  return LLM(options).trace(tokens, {}).logits.data;
}

// ---- The model ---------------------------------------------------------------------------------

struct Case {
  const char* model;
  int32_t num_ranks;
};

class RanksOfModels : public ::testing::TestWithParam<Case> {};

// The reference is transformers in f32; its own error in bf16 is the bound, as in golden_test, also
// though partial sums are rounded to bf16 once more than with one rank.
TEST_P(RanksOfModels, LogitsMatchTransformers) {
  const auto [model, num_ranks] = GetParam();
  if (num_ranks > most_ranks()) GTEST_SKIP() << "skipped: no " << num_ranks << " GPUs";
  if (!runs_here(model)) GTEST_SKIP() << "skipped: CUDA has no kernel for experts of odd widths";
  const Golden golden = testing::read_golden(model);
  const auto logits = logits_of(with_ranks(tiny_options(model), num_ranks), golden.prompt);
  ASSERT_EQ(logits.size(), golden.logits.size());
  const auto error_of = [&](const std::vector<float>& some) {
    return median_nmse(some, golden.logits, golden.prompt.size());
  };
  const double error = error_of(logits);
  const double of_one = error_of(logits_of(tiny_options(model), golden.prompt));
  std::printf("%s: median NMSE of %d ranks %.2e, of one %.2e; transformers in bf16 %.2e\n", model,
              num_ranks, error, of_one, golden.bf16_nmse);
  EXPECT_LT(error, golden.bf16_nmse);
  EXPECT_NE(error, of_one) << "nothing was divided";
}

// With fewer KV heads than ranks, neighbours have the same one.
INSTANTIATE_TEST_SUITE_P(
    Models, RanksOfModels,
    ::testing::Values(Case{"llama-group1-default", 2}, Case{"llama-group1-default", 4},
                      Case{"llama-group2-linear", 2}, Case{"llama-group2-linear", 4},
                      Case{"llama-group4-llama3", 2}, Case{"llama-group4-llama3", 4},
                      Case{"llama-heads8-tied", 4}, Case{"mixtral-experts4", 2},
                      Case{"qwen2-group2-yarn", 2}, Case{"qwen2moe-experts6", 2},
                      Case{"qwen2moe-experts6", 4}, Case{"qwen3-group1-untied", 2},
                      Case{"qwen3-group2-tied", 2}, Case{"qwen3-group2-tied", 4},
                      Case{"qwen3-group4-yarn", 4}, Case{"qwen3moe-experts8-pair", 2}),
    [](const auto& param_info) {
      std::string name = param_info.param.model;
      for (char& c : name) c = c == '-' ? '_' : c;
      return name + "_" + std::to_string(param_info.param.num_ranks);
    });

// A model whose ranks have whole blocks of 128 rows and columns of each weight, in bf16.
void write_wide_model(const std::filesystem::path& directory) {
  nlohmann::json config = nlohmann::json::parse(
      std::ifstream(testing::tiny_model_path("qwen3-group2-tied") / "config.json"));
  config.update({{"hidden_size", 128},
                 {"head_dim", 64},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 4},
                 {"intermediate_size", 512}});
  std::ofstream(directory / "config.json") << config;
  std::vector<testing::WrittenTensor> tensors;
  std::mt19937 random(7);
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, float mean) {
    std::normal_distribution<float> normal(mean, 0.1f);
    std::vector<uint16_t> values(static_cast<size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1)));
    for (uint16_t& value : values) value = BFloat16(normal(random)).bits;
    tensors.push_back({name, DType::kBF16, std::move(shape), testing::bytes_of(values)});
  };
  add("model.embed_tokens.weight", {160, 128}, 0);
  add("model.norm.weight", {128}, 1);
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", {128}, 1);
    add(layer + "post_attention_layernorm.weight", {128}, 1);
    add(layer + "self_attn.q_proj.weight", {512, 128}, 0);
    add(layer + "self_attn.k_proj.weight", {256, 128}, 0);
    add(layer + "self_attn.v_proj.weight", {256, 128}, 0);
    add(layer + "self_attn.o_proj.weight", {128, 512}, 0);
    add(layer + "self_attn.q_norm.weight", {64}, 1);
    add(layer + "self_attn.k_norm.weight", {64}, 1);
    add(layer + "mlp.gate_proj.weight", {512, 128}, 0);
    add(layer + "mlp.up_proj.weight", {512, 128}, 0);
    add(layer + "mlp.down_proj.weight", {128, 512}, 0);
  }
  std::vector<SafetensorsInput> inputs;
  for (const testing::WrittenTensor& t : tensors) {
    inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
  }
  write_safetensors(directory / "model.safetensors", inputs);
}

// The same model in formats with scales: what a rank reads of codes, scales and zero points belongs
// together. A rank that reads others' scales is off by 1e-2 and more.
TEST_F(RanksOfFormats, LogitsAreThoseOfOneRank) {
  const TempDir wide;
  write_wide_model(wide.path());
  const std::vector<int32_t> tokens = random_tokens(60, 5);
  const auto check = [&](const std::filesystem::path& directory, const std::string& what) {
    EngineOptions options = tiny_options("qwen3-group2-tied");
    options.model = directory;
    options.max_model_len = 256;
    const auto expected = logits_of(options, tokens);
    const double error = nmse(logits_of(with_ranks(options, 2), tokens), expected);
    std::printf("%s: NMSE of two ranks against one %.2e\n", what.c_str(), error);
    EXPECT_LT(error, 3e-4) << what;
  };
  check(wide.path(), "bf16");
  for (const WeightScales scales :
       {WeightScales::kBlocks, WeightScales::kRows, WeightScales::kTensor}) {
    const TempDir dir;
    testing::write_fp8_model(wide.path(), scales, dir.path());
    check(dir.path(), "FP8, scales " + std::to_string(static_cast<int>(scales)));
  }
  for (const testing::IntegerKind& kind : std::vector<testing::IntegerKind>{
           {.form = IntegerForm::kPackQuantized, .group = 32, .symmetric = true},
           {.form = IntegerForm::kPackQuantized, .bits = 8, .group = 64},
           {.form = IntegerForm::kPackQuantized, .group = -1},
           {.form = IntegerForm::kAwq, .group = 128},
           {.form = IntegerForm::kGptq, .group = 32},
           {.form = IntegerForm::kGptqV2, .bits = 8, .group = -1}}) {
    const TempDir dir;
    testing::write_integer_model(wide.path(), kind, dir.path());
    check(dir.path(), kind_name(kind));
  }
}

// Blocks of a GGUF file are decoded for the rows and columns of a rank, in the order of heads that
// a directory has. Products with them need not round their numbers to bf16, as those of the
// directory are.
TEST_F(RanksOfFormats, GgufFilesAreDividedAsDirectories) {
  const std::filesystem::path golden = testing::source_dir() / "tests/golden";
  for (const auto& [model, file] :
       {std::pair{"models/qwen3-group2-tied", "qwen3-group2-tied.gguf"},
        std::pair{"models/qwen2-group2-yarn", "qwen2-group2-yarn-00001-of-00002.gguf"},
        std::pair{"models/mixtral-experts4", "mixtral-experts4.gguf"},
        std::pair{"models/qwen3moe-experts8-pair", "qwen3moe-experts8-pair.gguf"},
        std::pair{"gguf/mixed-hybrid", "mixed-hybrid.gguf"}}) {
    if (!runs_here(model)) continue;
    EngineOptions options = with_ranks(tiny_options("qwen3-group2-tied"), 2);
    options.model = golden / model;
    std::vector<int32_t> tokens = random_tokens(60, 8);
    if (std::string_view(model) == "gguf/mixed-hybrid") {
      for (int32_t& token : tokens) token %= 16;  // its vocabulary
    }
    const auto expected = logits_of(options, tokens);
    options.model = golden / "gguf" / file;
    const auto got = logits_of(options, tokens);
    if (std::string_view(model) == "gguf/mixed-hybrid") {
      EXPECT_LT(median_nmse(got, expected, tokens.size()), 2e-4) << file;
    } else {
      EXPECT_EQ(got, expected) << file;
    }
  }
}

// Random weights of a measurement are those of one rank as well.
TEST_F(RanksOfFormats, DummyWeightsAreThoseOfOneRank) {
  for (const char* model : {"qwen3-group2-tied", "qwen2-group2-yarn", "qwen2moe-experts6"}) {
    if (!runs_here(model)) continue;
    EngineOptions options = tiny_options(model);
    options.load_format = LoadFormat::kDummy;
    const std::vector<int32_t> tokens = random_tokens(60, 6);
    const auto expected = logits_of(options, tokens);
    EXPECT_LT(median_nmse(logits_of(with_ranks(options, 2), tokens), expected, tokens.size()), 1e-3)
        << model;
  }
}

// ---- The engine's promises ---------------------------------------------------------------------

std::vector<Job> some_jobs() {
  std::vector<Job> jobs;
  const std::vector<int32_t> shared = random_tokens(70, 3);
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<int64_t>(i % 2) * 70);
    for (const int32_t token : random_tokens(40 + 31 * static_cast<int64_t>(i), i)) {
      prompt.push_back(token);
    }
    jobs.push_back({.prompt = prompt, .params = sampled(24, static_cast<int64_t>(i))});
  }
  return jobs;
}

// Where KV is, how passes are cut and who shares a prefix changes no bit, as with one rank.
TEST_F(Ranks, SameBitsWhereverKvIs) {
  for (const auto& [model, num_ranks] :
       {std::pair{"qwen3-group2-tied", 2}, std::pair{"llama-group2-linear", most_ranks()}}) {
    const EngineOptions resident = with_ranks(tiny_options(model), num_ranks);
    const std::vector<Job> jobs = some_jobs();
    const auto expected = run_engine(resident, jobs);
    expect_all_near(expected, run_engine(tiny_options(model), jobs), model, near_tie_nats(model));
    const auto check = [&](const EngineOptions& options, const char* what) {
      expect_all_same(run_engine(options, jobs), expected, std::string(model) + ", " + what);
    };
    check(with_offload(resident, KvOffload::kChunked), "chunked");
    check(with_offload(resident, KvOffload::kLayerwise), "layerwise");
    if (!testing::testing_cpu()) continue;  // products of another height round otherwise
    EngineOptions chunks = resident;
    chunks.prefill_chunk_tokens = 32;
    check(chunks, "short chunks");
    EngineOptions alone = resident;
    alone.max_num_seqs = 1;
    alone.enable_prefix_caching = false;
    check(alone, "one at a time");
    EngineOptions few = resident;
    few.kv.cache_bytes = 8 * 16 * 1024;
    few.max_model_len = 300;
    check(with_offload(few, KvOffload::kChunked), "few blocks");
  }
}

struct PolicyCase {
  const char* name;
  SparseOptions options;
};

// Each list is that of a KV head, so ranks choose as one does, from KV of other bits.
TEST_F(Ranks, SparsePoliciesKeepTheirBits) {
  const char* model = "llama-group2-linear";
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 2; ++i) {
    jobs.push_back({.prompt = random_tokens(700 + 90 * static_cast<int64_t>(i), i),
                    .params = sampled(12, static_cast<int64_t>(i))});
  }
  EngineOptions full = with_ranks(tiny_options(model), 2);
  full.kv.block_size = 128;  // of a tile
  const auto of_full = run_engine(full, jobs);
  for (const PolicyCase& policy :
       std::vector<PolicyCase>{{"full+quest", {.topk_tokens = 64}},
                               {"minference+quest", {.vertical_tokens = 32, .slash_tokens = 256}},
                               {"xattention+full", {.coverage = 0.5}},
                               {"flexprefill+full", {.coverage = 0.3, .min_budget_tokens = 0}},
                               {"avgpool+full", {.topk_tokens = 128}},
                               {"streaming+full", {}},
                               {"sampled+quest", {.topk_tokens = 64, .coverage = 0.5}}}) {
    EngineOptions options = full;
    options.sparse = policy.options;
    options.sparse.policy = policy.name;
    options.sparse.threshold_tokens = options.sparse.sink_tokens = options.sparse.recent_tokens = 0;
    if (policies_use(policy.name, "sparse_tail_tokens")) options.sparse.tail_tokens = 1;
    const auto expected = run_engine(options, jobs);
    EXPECT_NE(expected[0].logprobs.back()[0].logprob, of_full[0].logprobs.back()[0].logprob)
        << policy.name << " chose all";
    for (const KvOffload mode : {KvOffload::kChunked, KvOffload::kLayerwise}) {
      expect_all_same(run_engine(with_offload(options, mode), jobs), expected, policy.name);
    }
  }
}

TEST_F(Ranks, DraftsKeepTheirBits) {
  const std::vector<Job> jobs = some_jobs();
  EngineOptions options = with_ranks(tiny_options("qwen3-group2-tied"), 2);
  const auto expected = run_engine(options, jobs);
  options.speculative.method = SpeculativeMethod::kNgram;
  const auto check = [&](const auto& runs, const char* what) {
    // The rows of a verifying pass are products of another height, which round otherwise on GPUs.
    if (testing::testing_cpu()) {
      expect_all_same(runs, expected, what);
    } else {
      expect_all_near(runs, expected, what, near_tie_nats("qwen3-group2-tied"));
    }
  };
  check(run_engine(options, jobs), "n-gram drafts");
  const EngineOptions sparse = with_ranks(testing::speculative(SpeculativeMethod::kSparse, 4), 2);
  const auto drafted = run_engine(sparse, jobs);
  check(drafted, "sparse drafts");
  expect_all_same(run_engine(with_offload(sparse, KvOffload::kChunked), jobs), drafted,
                  "sparse drafts, chunked");
}

// Streams of each rank are late at random: a missing wait between ranks would show, as bits or to
// ThreadSanitizer.
TEST_F(Ranks, NoScheduleChangesABit) {
  const EngineOptions options = with_ranks(tiny_options("llama-group2-linear"), most_ranks());
  const std::vector<Job> jobs = some_jobs();
  const auto expected = run_engine(options, jobs);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto device_of = [seed](int32_t rank) {
      return testing::make_hooked_device(
          device_of_rank(testing::test_device_spec(), rank), {.num_threads = 1},
          {.schedule_seed = seed * 16 + static_cast<uint64_t>(rank) + 1});
    };
    LlmEngine::Parts parts{.device = device_of(0)};
    parts.make_device = device_of;
    LlmEngine engine(options, std::move(parts));
    expect_all_same(run_jobs(engine, jobs), expected, "seed " + std::to_string(seed));
  }
}

// ---- What does not divide, and what fails ------------------------------------------------------

TEST_F(Ranks, WhatDoesNotDivideIsRefused) {
  const auto start = [](const char* model, int32_t num_ranks) {
    LLM llm(with_ranks(tiny_options(model), num_ranks));
  };
  expect_error_with(ErrorCode::kInvalidArgument, [&] { start("qwen3-group2-tied", 3); },
                    {"tensor_parallel_size is 3", "4 query heads", "take one of 1, 2, 4"});
  const TempDir dir;
  testing::write_fp8_model("qwen3-group2-tied", WeightScales::kBlocks, dir.path());
  EngineOptions blocks = with_ranks(tiny_options("qwen3-group2-tied"), 2);
  blocks.model = dir.path();
  expect_error_with(ErrorCode::kUnsupported, [&] { LLM llm(blocks); },
                    {"a scale for 128 rows", "smaller tensor_parallel_size"});
}

TEST_F(Ranks, OptionsOfOneRankAreRefused) {
  const EngineOptions options = with_ranks(tiny_options("qwen3-group2-tied"), 2);
  EngineOptions shared = options;
  shared.sparse.policy = "full+quest";
  shared.sparse.shared_list = true;
  expect_error_with(ErrorCode::kUnsupported, [&] { LLM llm(shared); },
                    {"sparse_shared_list", "tensor_parallel_size of 2"});
  LLM llm(options);
  expect_error_with(ErrorCode::kUnsupported, [&] { llm.trace(random_tokens(8, 1), {"layer.*.q"}); },
                    {"taps need all heads"});
}

// A rank that cannot be made ends the start of all with its own error.
TEST_F(Ranks, AFailedRankEndsTheStart) {
  const int32_t failing = most_ranks() / 2;
  const EngineOptions options = with_ranks(tiny_options("llama-group2-linear"), most_ranks());
  LlmEngine::Parts parts{.device = testing::make_test_device()};
  parts.make_device = [failing](int32_t rank) {
    if (rank == failing) fail(ErrorCode::kDevice, "no device for this rank");
    return make_device(device_of_rank(testing::test_device_spec(), rank));
  };
  expect_error_with(ErrorCode::kDevice, [&] { LlmEngine engine(options, std::move(parts)); },
                    {"no device for this rank"});
}

// Invariant 9, on all ranks.
TEST_F(Ranks, AStepAllocatesNothing) {
  std::array<Device*, 2> devices = {};
  LlmEngine::Parts parts{.device = testing::make_test_device()};
  devices[0] = parts.device.get();
  parts.make_device = [&](int32_t rank) {
    auto device = make_device(device_of_rank(testing::test_device_spec(), rank));
    devices[static_cast<size_t>(rank)] = device.get();
    return device;
  };
  LlmEngine engine(with_ranks(tiny_options("qwen3-group2-tied"), 2), std::move(parts));
  engine.add_request(random_tokens(60, 1), sampled(40, 1));
  for (int i = 0; i < 5; ++i) engine.step();
  const auto count = [&] { return devices[0]->num_allocations() + devices[1]->num_allocations(); };
  const int64_t before = count();
  while (engine.has_unfinished()) engine.step();
  EXPECT_EQ(count(), before);
}

}  // namespace
}  // namespace sluice
