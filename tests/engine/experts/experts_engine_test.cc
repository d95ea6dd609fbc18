// Models with mixtures of experts: the router against transformers, the forms that files have, and
// what the engine promises of every model.
//
// Logits and greedy text are compared in golden_test; batches and chunks of all families in
// invariants_test.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "ops/experts/experts.h"
#include "ops/matmul/matmul.h"
#include "ops/ops.h"
#include "sluice/inspect.h"
#include "sluice/llm.h"
#include "support/fp8_models.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Job;

constexpr const char* kModel = "qwen3moe-experts8-pair";  // layer 1 is dense; 2 of 8 experts

std::filesystem::path path_of(const std::string& model) {
  return testing::source_dir() / "tests/golden/models" / model;
}

// A tensor of a file, with its bytes.
struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;

  template <typename T>
  std::vector<T> values() const {
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
};
using Tensors = std::map<std::string, Tensor>;

Tensors read_tensors(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  Tensors tensors;
  for (const auto& entry :
       parse_safetensors_header(std::as_bytes(std::span(file)), path.string()).tensors) {
    tensors[entry.name] = {entry.dtype.value(), entry.shape,
                           file.substr(entry.begin, entry.end - entry.begin)};
  }
  return tensors;
}

void write_tensors(const std::filesystem::path& path, const Tensors& tensors,
                   const std::vector<std::string>& names) {
  std::vector<SafetensorsInput> inputs;
  for (const std::string& name : names) {
    const Tensor& tensor = tensors.at(name);
    inputs.push_back({.name = name,
                      .dtype = tensor.dtype,
                      .shape = tensor.shape,
                      .bytes = std::as_bytes(std::span(tensor.bytes))});
  }
  write_safetensors(path, inputs);
}

std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// ---- The router -------------------------------------------------------------------------------

// The same inputs and weights, in transformers in float32.
TEST(Experts, TheRouterIsThatOfTransformers) {
  for (const char* name : {"qwen3moe-experts8", kModel, "qwen2moe-experts6", "mixtral-experts4"}) {
    Tensors golden = read_tensors(path_of(name) / "router.safetensors");
    const auto device = make_device("cpu", {.num_threads = 2});
    const auto stream = device->make_stream({.name = "router", .num_threads = 2});
    const int64_t m = golden["x"].shape[0], hidden = golden["x"].shape[1];
    const int64_t num_experts = golden["weight"].shape[0], k = golden["experts"].shape[1];
    std::vector<BFloat16> x = golden["x"].values<BFloat16>();
    std::vector<BFloat16> weight = golden["weight"].values<BFloat16>();
    const Buffer packed =
        device->allocate(packed_weight_bytes(*device, num_experts, hidden), MemoryKind::kDevice);
    const PackedWeight router{.data = packed.data(), .num_rows = num_experts, .num_cols = hidden};
    pack_weight(*stream, {.src = TensorView(weight.data(), DType::kBF16, {num_experts, hidden}),
                          .dst = router});
    std::vector<float> scores(static_cast<size_t>(m * num_experts));
    std::vector<int32_t> experts(static_cast<size_t>(m * k));
    std::vector<float> shares(static_cast<size_t>(m * k));
    const TensorView view(scores.data(), DType::kF32, {m, num_experts});
    route_experts(*stream, {.x = TensorView(x.data(), DType::kBF16, {m, hidden}),
                            .router = router,
                            .scores = view,
                            .experts = TensorView(experts.data(), DType::kI32, {m, k}),
                            .shares = TensorView(shares.data(), DType::kF32, {m, k}),
                            .normalize = name == std::string(kModel) ||
                                         name == std::string("mixtral-experts4")});
    stream->synchronize();
    EXPECT_EQ(experts, golden["experts"].values<int32_t>()) << name;
    const auto expect_near = [&](const std::vector<float>& got, const char* what) {
      const std::vector<float> expected = golden[what].values<float>();
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], 1e-6) << name << " " << what;
      }
    };
    expect_near(scores, "probabilities");
    expect_near(shares, "shares");
  }
}

TEST(Experts, TapsShowProbabilitiesAndChoice) {
  LLM llm(testing::tiny_options(kModel));
  std::map<std::string, TapTensor> taps;
  for (TapTensor& tap : llm.trace(testing::random_tokens(20, 1), {"*.router", "*.experts"}).taps) {
    taps[tap.name] = std::move(tap);
  }
  ASSERT_EQ(taps.size(), 6u);  // of layers 0, 2 and 3
  for (const char* layer : {"layer.0.", "layer.2.", "layer.3."}) {
    const TapTensor& router = taps[std::string(layer) + "router"];
    const TapTensor& experts = taps[std::string(layer) + "experts"];
    ASSERT_EQ(router.shape, (std::vector<int64_t>{20, 8}));
    ASSERT_EQ(experts.shape, (std::vector<int64_t>{20, 2}));
    for (size_t row = 0; row < 20; ++row) {
      const auto begin = router.data.begin() + static_cast<int64_t>(row) * 8;
      EXPECT_NEAR(std::accumulate(begin, begin + 8, 0.0), 1.0, 1e-6);
      EXPECT_EQ(experts.data[row * 2], std::max_element(begin, begin + 8) - begin);
    }
  }
}

// ---- Files ------------------------------------------------------------------------------------

EngineOptions options_of(const std::filesystem::path& path) {
  EngineOptions options = testing::tiny_options(kModel);
  options.model = path;
  return options;
}

std::vector<float> logits_of(const std::filesystem::path& path) {
  return LLM(options_of(path)).trace(testing::random_tokens(60, 1), {}).logits.data;
}

void copy_config(const std::string& model, const TempDir& dir) {
  std::filesystem::copy_file(path_of(model) / "config.json", dir.path() / "config.json");
}

// Dummy weights stand for a trained model in measurements, whose router spreads the tokens.
TEST(Experts, DummyWeightsChooseExpertsByToken) {
  constexpr int32_t kExperts = 32, kTokens = 200, kChosen = 4, kLayers = 16;
  const TempDir dir;
  nlohmann::json config = read_json_file(path_of(kModel) / "config.json");
  config["num_hidden_layers"] = kLayers;
  config["hidden_size"] = 256;
  config["head_dim"] = 32;
  config["num_attention_heads"] = 8;
  config["moe_intermediate_size"] = 96;
  config["num_local_experts"] = kExperts;
  config["num_experts_per_tok"] = kChosen;
  config["vocab_size"] = 1000;
  write_file(dir.path() / "config.json", config.dump());
  EngineOptions options = options_of(dir.path());
  options.load_format = LoadFormat::kDummy;
  const std::string tap = fmt::format("layer.{}.experts", kLayers - 1);
  const auto trace = LLM(options).trace(testing::random_tokens(kTokens, 1), {tap});
  std::vector<int32_t> counts(kExperts);
  for (const float expert : trace.taps.at(0).data) ++counts[static_cast<size_t>(expert)];
  // Evenly spread, an expert has 25 tokens; where all choose alike, four have 200.
  EXPECT_LT(std::ranges::max(counts), 100) << fmt::format("{}", fmt::join(counts, " "));
  EXPECT_GT(std::ranges::count_if(counts, [](int32_t count) { return count > 0; }), 24);
}

// Three shards, with tensors dealt out in an order that has nothing to do with layers.
TEST(Experts, TheirTensorsMayLieInAnyShard) {
  const TempDir dir;
  copy_config(kModel, dir);
  const Tensors tensors = read_tensors(path_of(kModel) / "model.safetensors");
  std::vector<std::string> names = names_of(tensors);
  std::ranges::sort(names, {},
                    [](const std::string& name) { return std::hash<std::string>()(name); });
  nlohmann::json index;
  for (size_t shard = 0; shard < 3; ++shard) {
    const std::string file = fmt::format("model-{:05}-of-00003.safetensors", shard + 1);
    std::vector<std::string> own;
    for (size_t i = shard; i < names.size(); i += 3) own.push_back(names[i]);
    for (const std::string& name : own) index["weight_map"][name] = file;
    write_tensors(dir.path() / file, tensors, own);
  }
  write_file(dir.path() / "model.safetensors.index.json", index.dump());
  EXPECT_EQ(logits_of(dir.path()), logits_of(path_of(kModel)));
}

// As transformers 5 has them in memory: gate_up_proj [experts, gate then up, hidden] and down_proj.
Tensors stacked(const Tensors& tensors, const std::string& gate, const std::string& up,
                const std::string& down) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    const size_t experts = name.find("experts.");
    if (experts == std::string::npos) {
      out[name] = tensor;
      continue;
    }
    const std::string prefix = name.substr(0, experts + 8);
    const std::string rest = name.substr(experts + 8);
    if (rest != "0." + down + ".weight") continue;  // once for each layer
    Tensor& gate_up = out[prefix + "gate_up_proj"];
    Tensor& downs = out[prefix + "down_proj"];
    int64_t count = 0;
    for (; tensors.contains(fmt::format("{}{}.{}.weight", prefix, count, down)); ++count) {
      const auto part = [&](const std::string& module) {
        return tensors.at(fmt::format("{}{}.{}.weight", prefix, count, module)).bytes;
      };
      gate_up.bytes += part(gate) + part(up);
      downs.bytes += part(down);
    }
    const int64_t hidden = tensor.shape[0], intermediate = tensor.shape[1];
    gate_up.dtype = downs.dtype = tensor.dtype;
    gate_up.shape = {count, 2 * intermediate, hidden};
    downs.shape = {count, hidden, intermediate};
  }
  return out;
}

TEST(Experts, OneTensorMayHaveThemAll) {
  for (const std::string model : {kModel, "mixtral-experts4"}) {
    if (model != kModel && !testing::testing_cpu()) continue;  // too narrow for a GPU
    const TempDir dir;
    copy_config(model, dir);
    const Tensors tensors = read_tensors(path_of(model) / "model.safetensors");
    const Tensors stacks = model == kModel ? stacked(tensors, "gate_proj", "up_proj", "down_proj")
                                           : stacked(tensors, "w1", "w3", "w2");
    ASSERT_LT(stacks.size(), tensors.size());
    write_tensors(dir.path() / "model.safetensors", stacks, names_of(stacks));
    EXPECT_EQ(logits_of(dir.path()), logits_of(path_of(model))) << model;
  }
}

// Before anything is loaded.
TEST(Experts, AMissingExpertIsNamed) {
  const TempDir dir;
  copy_config(kModel, dir);
  Tensors tensors = read_tensors(path_of(kModel) / "model.safetensors");
  const std::string name = "model.layers.2.mlp.experts.5.up_proj.weight";
  ASSERT_EQ(tensors.erase(name), 1u);
  write_tensors(dir.path() / "model.safetensors", tensors, names_of(tensors));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { LLM llm(options_of(dir.path())); }),
                       "tensor \"" + name + "\" is missing"));
}

TEST(Experts, AStackOfAnotherShapeIsNamed) {
  const TempDir dir;
  copy_config(kModel, dir);
  Tensors tensors = stacked(read_tensors(path_of(kModel) / "model.safetensors"), "gate_proj",
                            "up_proj", "down_proj");
  Tensor& stack = tensors.at("model.layers.3.mlp.experts.gate_up_proj");
  std::swap(stack.shape[0], stack.shape[2]);
  write_tensors(dir.path() / "model.safetensors", tensors, names_of(tensors));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, [&] { LLM llm(options_of(dir.path())); }),
                       "layers.3.mlp.experts.gate_up_proj\" has shape"));
}

TEST(Experts, AStackOfCompressedTensorsIsRefused) {
  const TempDir dir;
  nlohmann::json config = nlohmann::json::parse(read_file(path_of(kModel) / "config.json"));
  config["quantization_config"] = testing::fp8_config(WeightScales::kRows);
  config["quantization_config"]["ignore"] = {"lm_head",
                                             "re:.*(self_attn|layers.1.mlp|mlp.gate$).*"};
  write_file(dir.path() / "config.json", config.dump());
  const Tensors stacks = stacked(read_tensors(path_of(kModel) / "model.safetensors"), "gate_proj",
                                 "up_proj", "down_proj");
  write_tensors(dir.path() / "model.safetensors", stacks, names_of(stacks));
  const std::string error =
      expect_error(ErrorCode::kUnsupported, [&] { LLM llm(options_of(dir.path())); });
  EXPECT_TRUE(contains(error, "experts.gate_up_proj\" has all experts")) << error;
  EXPECT_TRUE(contains(error, "take a model with a tensor for each expert")) << error;
}

// ---- Promises of the engine -------------------------------------------------------------------

TEST(Experts, ThreadsTilesAndThePlaceOfKvChangeNoBit) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back({testing::random_tokens(50 + 40 * static_cast<int64_t>(i), i),
                    testing::sampled(16, static_cast<int64_t>(i))});
  }
  const EngineOptions options = testing::tiny_options(kModel);
  const std::vector<RequestOutput> expected = testing::run_engine(options, jobs);
  const auto expect_same = [&](const char* what, const auto& change) {
    EngineOptions changed = options;
    change(changed);
    testing::expect_all_same(testing::run_engine(changed, jobs), expected, what);
  };
  if (testing::testing_cpu()) {  // a GPU rounds otherwise for other numbers of rows
    expect_same("alone", [](EngineOptions& o) { o.max_num_seqs = 1; });
    expect_same("one thread", [](EngineOptions& o) { o.num_threads = 1; });
    expect_same("three threads", [](EngineOptions& o) { o.num_threads = 3; });
    expect_same("chunks of 7", [](EngineOptions& o) { o.prefill_chunk_tokens = 7; });
  }
  for (const char* mode : {"chunked", "layerwise"}) {
    expect_same(mode, [&](EngineOptions& o) {
      o = testing::with_offload(o, testing::kv_offload_named(mode));
    });
  }
}

// A prompt of more rows than the layer takes at once.
TEST(Experts, LongPromptsGoInParts) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: a GPU takes all rows at once";
  EngineOptions options = testing::tiny_options(kModel);
  const std::vector<Job> jobs{{testing::random_tokens(500, 9), testing::sampled(6, 1)},
                              {testing::random_tokens(450, 10), testing::sampled(6, 2)}};
  options.max_num_batched_tokens = 1024;
  const std::vector<RequestOutput> whole = testing::run_engine(options, jobs);
  options.prefill_chunk_tokens = 64;
  testing::expect_all_same(testing::run_engine(options, jobs), whole, "chunks");
}

// The plan counts all experts, and the bench those that a token reads.
TEST(Experts, ASummaryCountsAllAndActiveWeights) {
  const ModelSummary summary =
      summarize_model((testing::source_dir() / "models/shapes/qwen3-30b-a3b").string());
  EXPECT_EQ(summary.num_parameters, 30'532'122'624);
  EXPECT_EQ(summary.weight_bytes, 2 * 30'532'122'624u);
  EXPECT_NEAR(static_cast<double>(summary.num_active_parameters), 3.35e9, 0.01e9);
  EXPECT_EQ(summary.active_weight_bytes, 2 * static_cast<size_t>(summary.num_active_parameters));
  EXPECT_EQ(summary.kv_bytes_per_token, 96u * 1024);
}

}  // namespace
}  // namespace sluice
