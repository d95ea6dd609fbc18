// The whole engine against transformers: logits of tiny random models of every family, greedy
// continuations, and the layers of a hybrid.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "io/file.h"
#include "io/safetensors.h"
#include "sluice/inspect.h"
#include "sluice/llm.h"
#include "support/loaded_weights.h"
#include "support/source_dir.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Golden;

class GoldenTest : public ::testing::TestWithParam<std::string> {};

// The reference is float32 over the same bf16 weights, so the error is the rounding of activations
// to bf16. transformers in bf16 rounds at the same places and at more (scores, probabilities), so
// its own error is the bound.
TEST_P(GoldenTest, LogitsMatchTransformers) {
  const Golden golden = testing::read_golden(GetParam());
  LLM llm(testing::tiny_options(GetParam()));
  const LLM::Trace trace = llm.trace(golden.prompt, {});
  ASSERT_EQ(trace.logits.data.size(), golden.logits.size());
  double error = 0, power = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    ASSERT_TRUE(std::isfinite(trace.logits.data[i])) << "at " << i;
    const double difference = double{trace.logits.data[i]} - golden.logits[i];
    error += difference * difference;
    power += double{golden.logits[i]} * golden.logits[i];
  }
  EXPECT_LT(error / power, golden.bf16_nmse);
  std::printf("%s: NMSE %.2e; transformers in bf16 %.2e\n", GetParam().c_str(), error / power,
              golden.bf16_nmse);
}

TEST_P(GoldenTest, GreedyTokensMatchUpToANearTie) {
  const Golden golden = testing::read_golden(GetParam());
  ASSERT_FALSE(golden.greedy.empty()) << "quantized layers alone have no continuation";
  LLM llm(testing::tiny_options(GetParam()));
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = static_cast<int32_t>(golden.greedy.size());
  const auto outputs = llm.generate({golden.prompt}, params);
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    if (outputs[0].token_ids[i] == golden.greedy[i]) continue;
    EXPECT_LE(golden.margins[i], 0.1) << "token " << i << " differs without a near tie";
    break;  // from here on the contexts differ
  }
}

// Every layer of a hybrid, whose logits alone would not say where a difference begins: the inputs
// of its layers, what the rule, attention and MLPs make of them. A layer is right while its error
// is at most twice that of transformers in bf16, as in tools/align/compare_layers.py, which
// compares all models where transformers is installed.
TEST(GoldenLayers, OfAHybridMatchTransformers) {
  constexpr const char* kName = "qwen35-hybrid-nested";
  const std::string path = testing::source_dir() / "tests/golden/models" / kName;
  const std::string file = read_file(path + "/layers.safetensors");
  const SafetensorsHeader header =
      parse_safetensors_header(std::as_bytes(std::span(file)), "layers.safetensors");
  const LLM::Trace trace =
      LLM(testing::tiny_options(kName)).trace(testing::read_golden(kName).prompt, {"layer.*"});
  int num_of_rule = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    const auto tap = std::ranges::find(trace.taps, entry.name, &TapTensor::name);
    ASSERT_NE(tap, trace.taps.end()) << entry.name;
    std::vector<float> expected((entry.end - entry.begin) / sizeof(float));
    std::memcpy(expected.data(), file.data() + entry.begin, entry.end - entry.begin);
    ASSERT_GE(tap->data.size(), expected.size()) << entry.name;
    const double error = testing::nmse(std::span(tap->data).first(expected.size()), expected);
    EXPECT_LE(error, 2 * std::stod(header.metadata.at(entry.name))) << entry.name;
    num_of_rule += entry.name.ends_with("delta_out") ? 1 : 0;
  }
  EXPECT_EQ(num_of_rule, 3);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(testing::tiny_model_names()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Models of tests/golden/gguf, of several files the first.
class GgufGoldenTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// The same weights in a GGUF file give the same bits. Llama 3's rope scaling, which such a file has
// as rounded divisors, gives them up to that.
TEST_P(GgufGoldenTest, GivesTheSameLogits) {
  const auto [name, file] = GetParam();
  const std::vector<std::string> names = testing::tiny_model_names();
  if (std::ranges::find(names, name) == names.end()) {
    GTEST_SKIP() << "skipped: CUDA has no kernel for experts of odd widths";
  }
  const Golden golden = testing::read_golden(name);
  EngineOptions options = testing::tiny_options(name);
  const LLM::Trace from_directory = LLM(options).trace(golden.prompt, {});
  options.model = testing::source_dir() / "tests/golden/gguf" / file;
  const LLM::Trace from_gguf = LLM(options).trace(golden.prompt, {});
  if (std::string_view(name).find("llama3") == std::string_view::npos) {
    EXPECT_EQ(from_gguf.logits.data, from_directory.logits.data);
    return;
  }
  EXPECT_LT(testing::nmse(from_gguf.logits.data, golden.logits), golden.bf16_nmse);
}

INSTANTIATE_TEST_SUITE_P(
    Files, GgufGoldenTest,
    ::testing::Values(std::pair("llama-group4-llama3", "llama-group4-llama3.gguf"),
                      std::pair("qwen2-group2-yarn", "qwen2-group2-yarn-00001-of-00002.gguf"),
                      std::pair("qwen3-group2-tied", "qwen3-group2-tied.gguf"),
                      std::pair("mixtral-experts4", "mixtral-experts4.gguf"),
                      std::pair("qwen2moe-experts6", "qwen2moe-experts6.gguf"),
                      std::pair("qwen3moe-experts8", "qwen3moe-experts8.gguf"),
                      std::pair("qwen3moe-experts8-pair", "qwen3moe-experts8-pair.gguf"),
                      std::pair("qwen35-hybrid-nested", "qwen35-hybrid-nested.gguf"),
                      std::pair("qwen35moe-hybrid-experts8", "qwen35moe-hybrid-experts8.gguf"),
                      std::pair("qwen3next-hybrid-experts6", "qwen3next-hybrid-experts6.gguf")));

// A plan follows from the metadata as from config.json, to the byte; the loaded engine takes what
// its plan says (tests/engine/hybrid and plan_test).
TEST_P(GgufGoldenTest, PlansTheSameMemory) {
  const auto [name, file] = GetParam();
  EngineOptions options = testing::tiny_options(name);
  const MemoryPlan of_directory = plan_memory(options);
  options.model = testing::source_dir() / "tests/golden/gguf" / file;
  const MemoryPlan of_gguf = plan_memory(options);
  ASSERT_EQ(of_gguf.entries.size(), of_directory.entries.size());
  for (size_t i = 0; i < of_gguf.entries.size(); ++i) {
    EXPECT_EQ(of_gguf.entries[i].name, of_directory.entries[i].name);
    EXPECT_EQ(of_gguf.entries[i].bytes, of_directory.entries[i].bytes) << of_gguf.entries[i].name;
  }
}

// Blocks of all types, in one matrix too, against the same numbers in F32, which become bf16; over
// two ranks, whose columns end within blocks, as well. They take less memory.
TEST(GgufMixed, GivesTheLogitsOfItsNumbers) {
  EngineOptions options = testing::tiny_options("qwen3-group2-tied");
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 60; ++i) tokens.push_back(i * 7 % 16);
  const std::string path = testing::source_dir() / "tests/golden/gguf/mixed";
  const auto weight_bytes = [&] { return plan_memory(options).entries.front().bytes; };
  const bool is_cpu = options.device == "cpu";
  for (const int32_t num_ranks : {1, 2}) {
    if (num_ranks > 1 && !is_cpu) continue;  // of GPUs: tests/engine/ranks
    options.tensor_parallel_size = num_ranks;
    options.model = path;
    const std::vector<float> expected = LLM(options).trace(tokens, {}).logits.data;
    const size_t of_numbers = weight_bytes();
    options.model = path + ".gguf";
    EXPECT_LT(testing::nmse(LLM(options).trace(tokens, {}).logits.data, expected), 1e-4)
        << num_ranks;
    // On a GPU rows of so few columns are mostly padding.
    EXPECT_LT(weight_bytes(), is_cpu ? of_numbers * 9 / 10 : of_numbers * 11 / 10) << num_ranks;
  }
}

// A hybrid with experts in blocks of many types, likewise; with its experts in host memory it has
// the same bits.
TEST(GgufMixedHybrid, GivesTheLogitsOfItsNumbers) {
  EngineOptions options = testing::tiny_options("qwen3-group2-tied");
  options.model = testing::source_dir() / "tests/golden/gguf/mixed-hybrid";
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(i * 7 % 16);
  const std::vector<float> expected = LLM(options).trace(tokens, {}).logits.data;
  ASSERT_TRUE(std::ranges::all_of(expected, [](float value) { return std::isfinite(value); }));
  options.model += ".gguf";
  const std::vector<float> resident = LLM(options).trace(tokens, {}).logits.data;
  // Of most tokens: one whose experts are nearly tied may choose others.
  EXPECT_LT(testing::median_nmse(resident, expected, tokens.size()), 2e-4);
  options.weights_offload = WeightsOffload::kExperts;
  EXPECT_EQ(LLM(options).trace(tokens, {}).logits.data, resident);
}

// Random weights have the formats of the file, so that measurements without its numbers read as
// many bytes.
TEST(GgufMixedHybrid, RandomWeightsTakeItsMemory) {
  EngineOptions options = testing::tiny_options("qwen3-group2-tied");
  const std::vector<int32_t> tokens = {1, 2, 3, 5, 8, 13};
  for (const char* file : {"mixed.gguf", "mixed-hybrid.gguf"}) {
    options.model = testing::source_dir() / "tests/golden/gguf" / file;
    options.load_format = LoadFormat::kAuto;
    const size_t num_bytes = plan_memory(options).entries.front().bytes;
    options.load_format = LoadFormat::kDummy;
    EXPECT_EQ(plan_memory(options).entries.front().bytes, num_bytes);
    const std::vector<float> logits = LLM(options).trace(tokens, {}).logits.data;
    EXPECT_TRUE(std::ranges::all_of(logits, [](float value) { return std::isfinite(value); }));
    EXPECT_GT(std::ranges::max(logits), std::ranges::min(logits)) << file;
  }
}

}  // namespace
}  // namespace sluice
