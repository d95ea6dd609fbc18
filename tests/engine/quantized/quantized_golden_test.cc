// Small checkpoints with quantized weights against the code of others: what is loaded is what
// exporters' own decoders make of the files, bit for bit, and the logits are those of transformers
// with these weights in F32.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/model_file.h"
#include "io/safetensors.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "sluice/llm.h"
#include "support/loaded_weights.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"
#include "support/weight_copies.h"

namespace sluice {
namespace {

using testing::QuantizedModel;

// A directory of tests/golden (tools/golden/make_fp8_golden.py, make_integer_golden.py).
class QuantizedGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path path() const { return testing::source_dir() / "tests/golden" / GetParam(); }
};

// The weights as others decode them, in F32.
QuantizedModel read_expected(const std::filesystem::path& path) {
  const ModelFile file(path / "expected.safetensors");
  QuantizedModel model;
  for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
    std::vector<float>& weight = model.weights[entry.name];
    weight.resize((entry.end - entry.begin) / sizeof(float));
    file.read(entry.begin, std::as_writable_bytes(std::span(weight)));
  }
  return model;
}

TEST_P(QuantizedGoldenTest, LoadsTheNumbersOfTheExporters) {
  const QuantizedModel expected = read_expected(path());
  const ModelDirectory directory(path());
  const auto device = make_device("cpu", {.num_threads = 2});
  const auto stream = device->make_stream({.name = "load", .num_threads = 2});
  prepare_ops(*stream);
  Weights weights(read_model_config(directory), *device);
  weights.load(Checkpoint(directory), *stream);
  const LayerWeights& layer = weights.layer(LayerId(0));
  const auto& attention = std::get<Attention::Weights>(layer.mixer);
  const auto& mlp = std::get<DenseMlp::Weights>(layer.mlp);
  const auto check = [&](const PackedWeight& matrix, const std::vector<std::string>& modules) {
    EXPECT_TRUE(has_scales(matrix.format)) << modules.front();
    const std::vector<float> columns = testing::columns_of(matrix, *stream);
    int64_t row_begin = 0;
    for (const std::string& module : modules) {
      const std::string name = "model.layers.0." + module + ".weight";
      const std::vector<float>& weight = expected.weights.at(name);
      testing::expect_rows(columns, matrix.num_rows, row_begin, weight, matrix.num_cols, name);
      row_begin += std::ssize(weight) / matrix.num_cols;
    }
    EXPECT_EQ(row_begin, matrix.num_rows);
  };
  check(attention.qkv, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"});
  check(attention.o, {"self_attn.o_proj"});
  check(mlp.gate_up, {"mlp.gate_proj", "mlp.up_proj"});
  check(mlp.down, {"mlp.down_proj"});
}

// transformers in bf16 rounds these weights and activations, Sluice activations alone, so its error
// is the bound, both as medians (quantized_layer.py says why). A GPU rounds activations of many
// rows to FP8 where weights are in FP8 (ADR 0033).
TEST_P(QuantizedGoldenTest, LogitsMatchTransformers) {
  const testing::Golden golden = testing::read_golden(path());
  LLM llm(testing::tiny_options(path()));
  const std::vector<float> logits = llm.trace(golden.prompt, {}).logits.data;
  ASSERT_EQ(logits.size(), golden.logits.size());
  ASSERT_TRUE(std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
  const bool rounds_to_fp8 = !testing::testing_cpu() && std::string(GetParam()).starts_with("fp8");
  const double most = rounds_to_fp8 ? 5e-3 : golden.bf16_nmse;
  const double error = testing::median_nmse(logits, golden.logits, golden.prompt.size());
  EXPECT_LT(error, most);
  std::printf("%s: NMSE %.2e; transformers in bf16 %.2e\n", GetParam(), error, golden.bf16_nmse);
}

TEST_P(QuantizedGoldenTest, TakesTheMemoryOfItsPlan) {
  const LlmEngine engine(testing::tiny_options(path()), {.device = testing::make_test_device()});
  EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
            engine.plan().memory.device_used_bytes());
}

INSTANTIATE_TEST_SUITE_P(Files, QuantizedGoldenTest,
                         ::testing::Values("fp8/blocks_f32", "fp8/blocks_bf16", "fp8/blocks_ue8m0",
                                           "fp8/compressed_blocks", "fp8/channel", "fp8/tensor",
                                           "integers/packed4", "integers/packed8", "integers/awq",
                                           "integers/gptq", "integers/gptq8", "integers/gptq_v2"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
