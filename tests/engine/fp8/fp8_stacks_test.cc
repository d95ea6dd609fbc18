// Tensors of all experts in FP8, as transformers 5 has them in memory: experts.gate_up_proj with
// blocks of scales that may have rows of gate and up, and experts.down_proj.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "io/expect_error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "sluice/llm.h"
#include "support/fp8_models.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"
#include "support/weight_copies.h"

namespace sluice {
namespace {

using testing::WrittenTensor;

constexpr const char* kModel = "qwen3moe-experts8-pair";  // layer 1 is dense
constexpr int64_t kExperts = 8, kHidden = 48;

// Codes and scales of all experts' matrices of one kind, and what each number stands for.
struct Stack {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<int64_t> scale_shape;
  std::vector<float> values;
};

int64_t blocks_of(int64_t count) { return (count + 127) / 128; }

// Scales differ by a factor of 16, so that a wrong one shows.
Stack random_stack(int64_t rows, int64_t cols, WeightScales kind, std::mt19937& random) {
  const bool by_block = kind == WeightScales::kBlocks;
  const int64_t down = by_block ? blocks_of(rows) : 1, across = by_block ? blocks_of(cols) : 1;
  Stack stack{.codes = {}, .scales = {}, .scale_shape = {kExperts, down, across}, .values = {}};
  std::uniform_real_distribution<float> exponent(-12, -8);
  for (int64_t i = 0; i < kExperts * down * across; ++i) {
    stack.scales.push_back(std::exp2(exponent(random)));
  }
  for (int64_t i = 0; i < kExperts * rows * cols; ++i) {
    const int64_t expert = i / (rows * cols), row = i / cols % rows, col = i % cols;
    const int64_t block = by_block ? row / 128 * across + col / 128 : 0;
    const auto code = static_cast<uint8_t>(random() % 0x70 | (random() & 1) << 7);
    stack.codes.push_back(code);
    stack.values.push_back(testing::e4m3_numbers()[code] *
                           stack.scales[static_cast<size_t>(expert * down * across + block)]);
  }
  return stack;
}

// The tiny model with other experts, of `intermediate` channels.
class StackedModel {
 public:
  StackedModel(int64_t intermediate, WeightScales kind) : intermediate_(intermediate) {
    nlohmann::json config = read_json_file(testing::tiny_model_path(kModel) / "config.json");
    config["moe_intermediate_size"] = intermediate;
    config["quantization_config"] = {
        {"quant_method", "fp8"},
        {"modules_to_not_convert",
         {"q_proj", "k_proj", "v_proj", "o_proj", "lm_head", "mlp.gate", "model.layers.1.mlp"}}};
    if (kind == WeightScales::kBlocks) {
      config["quantization_config"]["weight_block_size"] = {128, 128};
    }
    write_file(dir_.path() / "config.json", config.dump());
    std::mt19937 random(11);
    for (const int layer : {0, 2, 3}) {
      add(layer, "gate_up_proj", random_stack(2 * intermediate, kHidden, kind, random),
          {kExperts, 2 * intermediate, kHidden});
      add(layer, "down_proj", random_stack(kHidden, intermediate, kind, random),
          {kExperts, kHidden, intermediate});
    }
    copy_others();
  }

  // Without the tensors whose names end so.
  void write(const std::string& left_out = "none") const {
    std::vector<SafetensorsInput> inputs;
    for (const WrittenTensor& t : tensors_) {
      if (t.name.ends_with(left_out)) continue;
      inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
    }
    write_safetensors(dir_.path() / "model.safetensors", inputs);
  }
  const std::filesystem::path& path() const { return dir_.path(); }
  // Rows of an expert's matrix.
  std::vector<float> rows(const std::string& name, int64_t expert, int64_t first,
                          int64_t count) const {
    const int64_t cols = name == "down_proj" ? intermediate_ : kHidden;
    const int64_t all = name == "down_proj" ? kHidden : 2 * intermediate_;
    const std::vector<float>& values = stacks_.at("2." + name).values;
    const auto begin = values.begin() + (expert * all + first) * cols;
    return {begin, begin + count * cols};
  }

 private:
  void add(int layer, const std::string& name, Stack stack, std::vector<int64_t> shape) {
    const std::string full = fmt::format("model.layers.{}.mlp.experts.{}", layer, name);
    tensors_.push_back({full, DType::kE4m3, std::move(shape), testing::bytes_of(stack.codes)});
    tensors_.push_back(
        {full + "_scale_inv", DType::kF32, stack.scale_shape, testing::bytes_of(stack.scales)});
    stacks_.emplace(fmt::format("{}.{}", layer, name), std::move(stack));
  }

  void copy_others() {
    const Checkpoint checkpoint{ModelDirectory(testing::tiny_model_path(kModel))};
    for (const std::string& name : checkpoint.names()) {
      if (name.find(".experts.") != name.npos) continue;
      const auto shape = *checkpoint.shape_of(name);
      const CheckpointTensor tensor = checkpoint.tensor(name, shape);
      WrittenTensor copy{name, tensor.dtype, {shape.begin(), shape.end()}, {}};
      copy.bytes.resize(tensor.num_bytes);
      tensor.read(0, copy.bytes);
      tensors_.push_back(std::move(copy));
    }
  }

  TempDir dir_;
  int64_t intermediate_;
  std::vector<WrittenTensor> tensors_;
  std::map<std::string, Stack> stacks_;
};

// With 200 channels rows of up begin within a block, with 256 they do not.
TEST(Fp8Stacks, LoadedExpertsAreThoseOfTheFile) {
  for (const WeightScales kind : {WeightScales::kBlocks, WeightScales::kTensor}) {
    for (const int64_t intermediate : {24, 200, 256}) {
      const StackedModel model(intermediate, kind);
      model.write();
      const ModelDirectory directory(model.path());
      const auto device = make_device("cpu", {.num_threads = 2});
      const auto stream = device->make_stream({.name = "load", .num_threads = 2});
      Weights weights(read_model_config(directory), *device);
      weights.load(Checkpoint(directory), *stream);
      const auto& mlp = std::get<ExpertMlp::Weights>(weights.layer(LayerId(2)).mlp);
      for (int32_t e = 0; e < kExperts; ++e) {
        const PackedWeight gate_up = mlp.gate_up.expert(e), down = mlp.down.expert(e);
        EXPECT_TRUE(has_scales(gate_up.format));
        const auto expect = [&](const PackedWeight& matrix, const std::string& name, int64_t first,
                                int64_t count) {
          testing::expect_rows(testing::columns_of(matrix, *stream), matrix.num_rows, first,
                               model.rows(name, e, first, count), matrix.num_cols,
                               fmt::format("{} of {} channels, expert {}", name, intermediate, e));
        };
        expect(gate_up, "gate_up_proj", 0, intermediate);
        expect(gate_up, "gate_up_proj", intermediate, intermediate);
        expect(down, "down_proj", 0, kHidden);
      }
    }
  }
}

// A rank reads whole blocks of its rows and columns.
TEST(Fp8Stacks, RanksHaveTheirParts) {
  if (!testing::can_have(2) || !testing::testing_cpu()) GTEST_SKIP() << "skipped: needs two ranks";
  const StackedModel model(256, WeightScales::kBlocks);
  model.write();
  EngineOptions options = testing::tiny_options(kModel);
  options.model = model.path();
  const std::vector<int32_t> tokens = testing::random_tokens(60, 4);
  options.tensor_parallel_size = 1;
  const std::vector<float> expected = LLM(options).trace(tokens, {}).logits.data;
  options.tensor_parallel_size = 2;
  const std::vector<float> found = LLM(options).trace(tokens, {}).logits.data;
  EXPECT_LT(testing::median_nmse(found, expected, tokens.size()), 3e-4);
  // The store's key has the whole tensors, whatever a rank reads of them.
  const testing::TemporaryStore store;
  LLM stored(testing::with_store(options, store));
  EXPECT_EQ(stored.generate({tokens}, testing::sampled(4, 1)).size(), 1u);
}

TEST(Fp8Stacks, MissingScalesAreNamed) {
  const StackedModel model(24, WeightScales::kBlocks);
  model.write("layers.3.mlp.experts.down_proj_scale_inv");
  EngineOptions options = testing::tiny_options(kModel);
  options.model = model.path();
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { LLM llm(options); }),
                       "\"model.layers.3.mlp.experts.down_proj_scale_inv\" is missing"));
}

}  // namespace
}  // namespace sluice
