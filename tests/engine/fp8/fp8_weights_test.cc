// Weights in FP8: what is loaded stands for the numbers of the file, bit for bit, a model with them
// answers as one with these numbers, and nothing that the engine promises changes.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "sluice/inspect.h"
#include "support/fp8_models.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::columns_of;
using testing::expect_rows;
using testing::Job;
using testing::nmse;
using testing::QuantizedModel;
using testing::write_fp8_model;

constexpr WeightScales kAllScales[] = {WeightScales::kBlocks, WeightScales::kRows,
                                       WeightScales::kTensor};

TEST(Fp8Weights, LoadedNumbersAreThoseOfTheFile) {
  for (const WeightScales scales : kAllScales) {
    const TempDir dir;
    const QuantizedModel model = write_fp8_model("qwen3-group2-tied", scales, dir.path());
    const ModelDirectory directory(dir.path());
    const ModelConfig config = read_model_config(directory);
    const auto device = make_device("cpu", {.num_threads = 2});
    const auto stream = device->make_stream({.name = "load", .num_threads = 2});
    prepare_ops(*stream);
    Weights weights(config, *device);
    weights.load(Checkpoint(directory), *stream);
    for (int32_t layer = 0; layer < config.num_layers(); ++layer) {
      const std::string name = fmt::format("model.layers.{}.", layer);
      const LayerWeights& loaded = weights.layer(LayerId(layer));
      const auto& attention = std::get<Attention::Weights>(loaded.mixer);
      const auto& mlp = std::get<DenseMlp::Weights>(loaded.mlp);
      const auto check = [&](const PackedWeight& matrix, std::vector<std::string> parts) {
        const std::vector<float> columns = columns_of(matrix, *stream);
        int64_t row_begin = 0;
        for (const std::string& part : parts) {
          const std::vector<float>& weight = model.weights.at(name + part + ".weight");
          expect_rows(columns, matrix.num_rows, row_begin, weight, matrix.num_cols, name + part);
          row_begin += static_cast<int64_t>(weight.size()) / matrix.num_cols;
        }
        EXPECT_EQ(row_begin, matrix.num_rows);
        EXPECT_TRUE(has_scales(matrix.format));
      };
      check(attention.qkv, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
      check(attention.o, {"self_attn.o_proj"});
      check(mlp.gate_up, {"mlp.gate_proj", "mlp.up_proj"});
      check(mlp.down, {"mlp.down_proj"});
    }
  }
}

// Each expert has scales of its own.
TEST(Fp8Weights, LoadedExpertsAreThoseOfTheFile) {
  for (const WeightScales scales : kAllScales) {
    const TempDir dir;
    const QuantizedModel model = write_fp8_model("qwen3moe-experts8-pair", scales, dir.path());
    const ModelDirectory directory(dir.path());
    const auto device = make_device("cpu", {.num_threads = 2});
    const auto stream = device->make_stream({.name = "load", .num_threads = 2});
    Weights weights(read_model_config(directory), *device);
    weights.load(Checkpoint(directory), *stream);
    const auto& mlp = std::get<ExpertMlp::Weights>(weights.layer(LayerId(2)).mlp);
    EXPECT_FALSE(has_scales(mlp.router.format));
    for (int32_t e = 0; e < 8; ++e) {
      const std::string name = fmt::format("model.layers.2.mlp.experts.{}.", e);
      const PackedWeight gate_up = mlp.gate_up.expert(e), down = mlp.down.expert(e);
      const auto expect = [&](const PackedWeight& matrix, int64_t row_begin, const char* module) {
        expect_rows(columns_of(matrix, *stream), matrix.num_rows, row_begin,
                    model.weights.at(name + module + ".weight"), matrix.num_cols, name + module);
      };
      EXPECT_TRUE(has_scales(gate_up.format));
      expect(gate_up, 0, "gate_proj");
      expect(gate_up, gate_up.num_rows / 2, "up_proj");
      expect(down, 0, "down_proj");
    }
  }
}

EngineOptions options_of(const TempDir& dir) {
  EngineOptions options = testing::tiny_options("qwen3-group2-tied");
  options.model = dir.path();
  options.device = testing::test_device_spec();
  return options;
}

std::vector<Job> jobs() {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back({testing::random_tokens(50 + 40 * static_cast<int64_t>(i), i),
                    testing::sampled(24, static_cast<int64_t>(i))});
  }
  return jobs;
}

// Alone or together, which a GPU does not promise, and wherever KV is.
TEST(Fp8Weights, RowsDoNotDependOnEachOtherNorOnThePlaceOfKv) {
  for (const WeightScales scales : kAllScales) {
    const TempDir dir;
    write_fp8_model("qwen3-group2-tied", scales, dir.path());
    const std::vector<RequestOutput> together = testing::run_engine(options_of(dir), jobs());
    EngineOptions alone = options_of(dir);
    alone.max_num_seqs = 1;
    if (testing::testing_cpu()) {
      testing::expect_all_same(testing::run_engine(alone, jobs()), together, "alone");
    }
    for (const char* mode : {"chunked", "layerwise"}) {
      const EngineOptions offloaded =
          testing::with_offload(options_of(dir), testing::kv_offload_named(mode));
      testing::expect_all_same(testing::run_engine(offloaded, jobs()), together, mode);
    }
  }
}

// The logits of a text: those of FP8 are near those of its numbers in F32, which loading rounds to
// bf16, and not those of the model that was quantized. A GPU rounds many rows to FP8, too. Padded
// heads, other sizes of blocks' rests.
TEST(Fp8Weights, AnswersAreThoseOfItsNumbers) {
  for (const char* name : {"qwen3-group2-tied", "llama-heads8-tied", "qwen3-heads22-untied",
                           "qwen3moe-experts8-pair"}) {
    for (const WeightScales scales : kAllScales) {
      const bool pads = std::string(name).find("heads") != std::string::npos;
      if (pads && scales == WeightScales::kBlocks) continue;  // refused
      const TempDir fp8, plain;
      constexpr size_t kNumTokens = 60;
      const QuantizedModel model = write_fp8_model(name, scales, fp8.path());
      testing::write_plain_model(name, model, plain.path());
      const auto logits = [&](const std::filesystem::path& path) {
        EngineOptions options = testing::tiny_options(name);
        options.model = path;
        options.device = testing::test_device_spec();
        LlmEngine engine(options, nullptr);
        TraceRecorder recorder({}, engine.device());
        return engine.solo().trace(testing::random_tokens(kNumTokens, 1), recorder, {});
      };
      const std::vector<float> quantized = logits(fp8.path());
      const double most = testing::testing_cpu() ? 1e-3 : 5e-3;
      EXPECT_LT(testing::median_nmse(quantized, logits(plain.path()), kNumTokens), most) << name;
      EXPECT_GT(nmse(quantized, logits(testing::tiny_options(name).model)), 1e-4) << name;
    }
  }
}

// ---- Errors -----------------------------------------------------------------------------------

std::string error_of(ErrorCode code, const TempDir& dir) {
  return expect_error(code, [&] { LlmEngine engine(options_of(dir), nullptr); });
}

TEST(Fp8Weights, PartsOfOneMatrixAreAllQuantizedOrNone) {
  const TempDir dir;
  json config = testing::fp8_config(WeightScales::kRows);
  config["ignore"] = {"lm_head", "re:.*q_proj"};
  write_fp8_model("qwen3-group2-tied", WeightScales::kRows, dir.path(),
                  {{"quantization_config", config}});
  EXPECT_TRUE(contains(error_of(ErrorCode::kUnsupported, dir), "leaves out one of"));
}

TEST(Fp8Weights, WhatDoesNotFitTheConfigurationIsNamed) {
  const TempDir dir;
  json config = testing::fp8_config(WeightScales::kRows);
  config["ignore"] = {"model.layers.1.mlp"};
  write_fp8_model("qwen3-group2-tied", WeightScales::kRows, dir.path(),
                  {{"quantization_config", config}});
  EXPECT_TRUE(contains(error_of(ErrorCode::kUnsupported, dir), "model.layers.1.mlp"));
  const TempDir other;  // scales of rows, where one for the whole matrix is expected
  write_fp8_model("qwen3-group2-tied", WeightScales::kRows, other.path(),
                  {{"quantization_config", testing::fp8_config(WeightScales::kTensor)}});
  EXPECT_TRUE(contains(error_of(ErrorCode::kModel, other), "weight_scale\" has shape"));
}

// Overwrites the first bytes of a tensor in a safetensors file: a length, a JSON header, data.
void set_first_bytes(const std::filesystem::path& file, const std::string& name,
                     std::string_view bytes) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  stream.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string header(header_bytes, ' ');
  stream.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const auto begin = json::parse(header).at(name).at("data_offsets").at(0).get<uint64_t>();
  stream.seekp(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + begin));
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(stream.good());
}

TEST(Fp8Weights, ACodeThatIsNoNumberIsNamed) {
  for (const char* name :
       {"model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"}) {
    for (const char code : {'\x7f', '\xff'}) {
      const TempDir dir;
      write_fp8_model("qwen3-group2-tied", WeightScales::kRows, dir.path());
      set_first_bytes(dir.path() / "model.safetensors", name, std::string(1, code));
      const std::string error = error_of(ErrorCode::kModel, dir);
      EXPECT_TRUE(contains(error, std::string(name) + "\" has NaN")) << error;
    }
  }
}

// In F32, and as an exponent (F8_E8M0), which has no 0 and no sign, but NaN.
TEST(Fp8Weights, AScaleThatIsNoPositiveNumberIsNamed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::string module = "model.layers.1.self_attn.k_proj.";
  const auto expect = [](const TempDir& dir, const std::string& tensor, const std::string& value) {
    const std::string error = error_of(ErrorCode::kModel, dir);
    EXPECT_TRUE(contains(error, fmt::format("tensor \"{}\" has {} at 0;", tensor, value))) << error;
  };
  for (const WeightScales scales : kAllScales) {
    const std::string tensor =
        module + (scales == WeightScales::kBlocks ? "weight_scale_inv" : "weight_scale");
    for (const float wrong : {0.0f, -0.0f, -0.25f, kInfinity, -kInfinity, std::nanf("")}) {
      const TempDir dir;
      write_fp8_model("qwen3-group2-tied", scales, dir.path());
      const auto* const bytes = reinterpret_cast<const char*>(&wrong);
      set_first_bytes(dir.path() / "model.safetensors", tensor, {bytes, sizeof wrong});
      expect(dir, tensor, fmt::format("{}", wrong));
    }
  }
  const TempDir dir;
  const auto golden = testing::source_dir() / "tests/golden/fp8/blocks_ue8m0";
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(golden / file, dir.path() / file);
  }
  const std::string tensor = "model.layers.0.mlp.down_proj.weight_scale_inv";
  set_first_bytes(dir.path() / "model.safetensors", tensor, "\xff");
  expect(dir, tensor, "nan");
}

// Nothing of a planned machine is touched, so this runs without a GPU.
TEST(Fp8Weights, AGpuIsPlanned) {
  for (const char* model : {"qwen3-group2-tied", "qwen3moe-experts8-pair"}) {
    const TempDir dir;
    write_fp8_model(model, WeightScales::kBlocks, dir.path());
    const PlannedMachine machine{.gpu_bytes = size_t{24} << 30, .host_bytes = size_t{64} << 30};
    const MemoryPlan plan = plan_memory(options_of(dir), machine);
    EXPECT_TRUE(plan.fits) << model;
  }
}

}  // namespace
}  // namespace sluice
