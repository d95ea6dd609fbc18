// Hybrids with weights in FP8 and in integers: a model with them answers as one with their numbers,
// nothing that the engine promises changes, the plan counts their bytes, and what does not fit is
// named.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_copies.h"
#include "engine/llm_engine.h"
#include "engine/store/store_engine.h"
#include "io/expect_error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "model/weights.h"
#include "sluice/inspect.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::Copies;
using testing::dense_hybrid;
using testing::grouped_hybrid;
using testing::hybrid_of_experts;
using testing::HybridSizes;
using testing::Job;
using testing::write_fp8;
using testing::write_integers;

constexpr auto kPackedNames = IntegerForm::kPackQuantized;

EngineOptions options_of(const TempDir& dir) {
  EngineOptions options = testing::tiny_options(dir.path().string());
  options.max_num_seqs = 4;
  return options;
}

// Some for each architecture.
std::vector<std::unique_ptr<Copies>> some_models() {
  std::vector<std::unique_ptr<Copies>> models;
  models.push_back(write_fp8(grouped_hybrid(), WeightScales::kBlocks));
  models.push_back(write_fp8(dense_hybrid(), WeightScales::kRows));
  models.push_back(write_fp8(hybrid_of_experts(), WeightScales::kBlocks));
  models.push_back(write_integers(grouped_hybrid(), {.form = IntegerForm::kAwq}));
  models.push_back(write_integers(dense_hybrid(), {.form = kPackedNames}));
  models.push_back(write_integers(hybrid_of_experts(), {.form = IntegerForm::kGptqV2}));
  models.push_back(write_integers(grouped_hybrid(), {.form = IntegerForm::kGptq, .ordered = true}));
  return models;
}

// Alone or together and in chunks of any length, which a GPU does not promise, and wherever KV is.
TEST(HybridFormats, RowsDoNotDependOnEachOtherNorOnThePlaceOfKv) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 3; ++i) {
    jobs.push_back({testing::random_tokens(40 + 50 * static_cast<int64_t>(i), i),
                    testing::sampled(16, static_cast<int64_t>(i))});
  }
  for (const auto& copies : some_models()) {
    const EngineOptions options = options_of(copies->quantized);
    const std::vector<RequestOutput> together = testing::run_engine(options, jobs);
    const auto expect_same = [&](const char* what, const auto& change) {
      EngineOptions changed = options;
      change(changed);
      testing::expect_all_alike(testing::run_engine(changed, jobs), together, what, 0.5f);
    };
    for (const char* mode : {"chunked", "layerwise"}) {
      expect_same(mode, [&](EngineOptions& o) {
        o = testing::with_offload(o, testing::kv_offload_named(mode));
      });
    }
    if (!testing::testing_cpu()) continue;
    expect_same("alone", [](EngineOptions& o) { o.max_num_seqs = 1; });
    expect_same("chunks of 7", [](EngineOptions& o) { o.prefill_chunk_tokens = 7; });
    expect_same("chunks of 64", [](EngineOptions& o) { o.prefill_chunk_tokens = 64; });
  }
}

// The logits of a text are near those of the same numbers in F32, which loading rounds to bf16, and
// not those of the model that was quantized.
TEST(HybridFormats, AnswersAreThoseOfTheirNumbers) {
  constexpr size_t kNumTokens = 60;
  const auto logits = [](const TempDir& dir) {
    LlmEngine engine(options_of(dir), nullptr);
    TraceRecorder recorder({}, engine.device());
    return engine.solo().trace(testing::random_tokens(kNumTokens, 1), recorder, {});
  };
  for (const auto& copies : some_models()) {
    const TempDir same;
    testing::write_plain_model(copies->plain.path().string(), copies->model, same.path());
    const std::vector<float> quantized = logits(copies->quantized);
    const double rounding = testing::median_nmse(quantized, logits(same), kNumTokens);
    const double quantizing = testing::median_nmse(quantized, logits(copies->plain), kNumTokens);
    EXPECT_LT(rounding, testing::testing_cpu() ? 1e-3 : 5e-3);
    EXPECT_GT(quantizing, 3 * rounding);
  }
}

// The names of stored KV have the numbers of the file in them: the same weights find it again.
TEST(HybridFormats, ARestartFindsStoredKvAndStates) {
  const Job job{testing::random_tokens(100, 1), testing::sampled(16, 1)};
  for (const auto& copies : some_models()) {
    EngineOptions options = options_of(copies->quantized);
    options.device = "cpu";
    options.kv_store.min_tokens = 0;
    const testing::TemporaryStore store;
    options = testing::with_store(options, store);
    const std::vector<RequestOutput> first = testing::run_with_store(options, {job});
    const std::vector<RequestOutput> second = testing::run_with_store(options, {job});
    testing::expect_all_same(second, first, "from the store");
    EXPECT_EQ(first[0].num_stored_tokens, 0);
    EXPECT_EQ(second[0].num_stored_tokens, 80);  // the last block end 16 tokens before the prompt's
  }
}

// Measurements take them: rows of all matrices, and scales of whole blocks.
TEST(HybridFormats, RandomWeightsHaveTheFormatsOfTheFile) {
  std::vector<std::unique_ptr<Copies>> models = some_models();
  models.push_back(write_fp8(wide(grouped_hybrid()), WeightScales::kBlocks));
  for (const auto& copies : models) {
    EngineOptions options = options_of(copies->quantized);
    options.load_format = LoadFormat::kDummy;
    const std::vector<RequestOutput> outputs =
        testing::run_engine(options, {{testing::random_tokens(40, 1), testing::sampled(8, 1)}});
    EXPECT_EQ(outputs[0].token_ids.size(), 8u);
  }
}

// ---- Bytes and errors -------------------------------------------------------------------------

size_t stored_bytes(const TempDir& dir) {
  const auto device = make_device("cpu", {.num_threads = 1});
  return Weights::stored_bytes(read_model_config(ModelDirectory(dir.path())), *device).all;
}

// Against 2 bytes a number: a half and 5 bytes for each row and group of 32, and an order of
// columns for each tensor, of q_proj two.
TEST(HybridFormats, ThePlanCountsTheirBytes) {
  for (const HybridSizes& sizes : {grouped_hybrid(), dense_hybrid()}) {
    const auto plain = write_integers(sizes, {.form = IntegerForm::kAwq});
    const auto ordered = write_integers(sizes, {.form = IntegerForm::kGptq, .ordered = true});
    size_t saved = 0, orders = 0;
    for (const auto& [name, values] : plain->model.weights) {
      if (name.starts_with("mtp.")) continue;
      saved += values.size() * 2 - values.size() / 2 - values.size() / 32 * 5;
    }
    const auto count_orders = [&](int64_t num_tensors, int64_t num_columns) {
      orders += static_cast<size_t>(num_tensors * num_columns * 4);
    };
    const int64_t num_in = sizes.is_grouped() ? 1 : 2;
    count_orders(2 * num_in, sizes.hidden);
    count_orders(2, sizes.v_width());
    count_orders(4, sizes.hidden);
    count_orders(1, sizes.num_q_heads * sizes.head_dim);
    const int64_t num_mlps = 3 * (sizes.num_experts == 0 ? 1 : sizes.num_experts + 1);
    count_orders(2 * num_mlps, sizes.hidden);
    count_orders(num_mlps, sizes.num_experts == 0 ? sizes.intermediate : 32);
    EXPECT_EQ(stored_bytes(plain->quantized), stored_bytes(plain->plain) - saved);
    EXPECT_EQ(stored_bytes(ordered->quantized), stored_bytes(plain->quantized) + orders);
  }
}

// Nothing of a planned machine is touched, so this runs without a GPU.
TEST(HybridFormats, AGpuIsPlanned) {
  const PlannedMachine machine{.gpu_bytes = size_t{24} << 30, .host_bytes = size_t{64} << 30};
  for (const HybridSizes& sizes : {wide(grouped_hybrid()), wide(dense_hybrid())}) {
    const auto fp8 = write_fp8(sizes, WeightScales::kBlocks);
    EXPECT_TRUE(plan_memory(options_of(fp8->quantized), machine).fits);
    const auto awq = write_integers(sizes, {.form = IntegerForm::kAwq});
    EXPECT_TRUE(plan_memory(options_of(awq->quantized), machine).fits);
  }
}

// The error of loading a model, the same on every device that takes its format.
std::string error_of(const TempDir& dir) {
  EngineOptions options = options_of(dir);
  options.device = "cpu";
  return expect_error(ErrorCode::kUnsupported, [&] { LlmEngine engine(options, nullptr); });
}

TEST(HybridFormats, WhatDoesNotFitIsNamed) {
  HybridSizes sizes = dense_hybrid();
  sizes.head_dim = 24;  // padded to 32
  const auto padded = write_integers(sizes, {.form = IntegerForm::kAwq});
  const std::string of_heads = error_of(padded->quantized);
  EXPECT_TRUE(contains(of_heads, "model.layers.1.self_attn.o_proj.weight")) << of_heads;
  EXPECT_TRUE(contains(of_heads, "padded to 32")) << of_heads;

  sizes = grouped_hybrid();
  sizes.k_dim = 8;
  const auto narrow = write_integers(sizes, {.form = IntegerForm::kGptq, .ordered = true});
  const std::string of_order = error_of(narrow->quantized);
  EXPECT_TRUE(contains(of_order, "in_proj_qkvz.weight begins at row 8 ")) << of_order;

  sizes = dense_hybrid();
  sizes.num_v_heads = 2;
  sizes.v_dim = 26;
  const auto words = write_integers(sizes, {.form = kPackedNames});
  json config = testing::integer_config({.form = IntegerForm::kAwq});
  config = {{"quantization_config", with_left_out(config, sizes)}};
  json document = read_json_file(words->quantized.path() / "config.json");
  document.update(config);
  write_file(words->quantized.path() / "config.json", document.dump());
  const std::string of_words = error_of(words->quantized);
  EXPECT_TRUE(contains(of_words, "in_proj_qkv are [116, 64]")) << of_words;
}

TEST(HybridFormats, PartsOfOneMatrixAreAllQuantizedOrNone) {
  const HybridSizes sizes = dense_hybrid();
  TempDir plain, quantized;
  write_hybrid(sizes, plain.path());
  json method = with_left_out(testing::fp8_config(WeightScales::kBlocks), sizes);
  method["modules_to_not_convert"].push_back("model.language_model.layers.2.linear_attn.in_proj_z");
  testing::write_fp8_model(plain.path().string(), WeightScales::kBlocks, quantized.path(),
                           {{"quantization_config", method}});
  const std::string error = error_of(quantized);
  EXPECT_TRUE(contains(error, "leaves out one of model.layers.2.linear_attn.in_proj_qkv")) << error;
}

}  // namespace
}  // namespace sluice
