// Quantized weights: the error names the method and what to fetch instead.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/expect_error.h"
#include "model/model_config.h"

namespace sluice {
namespace {

using nlohmann::json;

// The error for a small Llama with these keys.
std::string error_of(const json& keys) {
  json config = json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "max_position_embeddings": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "vocab_size": 160})");
  config.update(keys);
  return expect_error(ErrorCode::kUnsupported,
                      [&] { parse_model_config({.config = config.dump()}); });
}

TEST(Quantization, NamesTheMethodOfAQuantization) {
  const auto refused = [](const json& changes) { return error_of(changes); };
  EXPECT_TRUE(contains(refused({{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}}),
                       "quantized with \"gptq\" in 4 bits"));
  EXPECT_TRUE(contains(refused({{"quantization", {{"group_size", 64}, {"bits", 4}}}}),
                       "quantization says that the weights are quantized"));
  EXPECT_TRUE(contains(refused({{"quantization_config", "x"}}), "a method that it does not name"));
}

// Each method as its exporter writes it: the error names the method and what to fetch instead.
TEST(Quantization, NamesTheFileToFetchInsteadOfQuantizedOnes) {
  struct Case {
    json config;
    const char* method;
    const char* without;
  };
  const auto packed = [](const char* format) {
    return json{{"quant_method", "compressed-tensors"}, {"format", format}};
  };
  for (const Case& c : std::vector<Case>{
           {{{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}, "\"fp8\"", "-FP8"},
           {{{"quant_method", "fbgemm_fp8"}}, "\"fbgemm_fp8\"", "-FP8"},
           {{{"quant_method", "awq"}, {"bits", 4}}, "\"awq\" in 4 bits", "-AWQ"},
           {{{"quant_method", "gptq"}, {"bits", 8}}, "\"gptq\" in 8 bits", "-GPTQ-Int4"},
           {{{"quant_method", "auto-round"}}, "\"auto-round\"", "-AutoRound"},
           {{{"quant_method", "bitsandbytes"}}, "\"bitsandbytes\"", "-bnb-4bit"},
           {{{"quant_method", "torchao"}}, "\"torchao\"", "-INT4"},
           {{{"quant_method", "hqq"}}, "\"hqq\"", "-HQQ"},
           {{{"quant_method", "exl2"}, {"bits", 4.25}}, "\"exl2\" in 4.25 bits", "-exl2"},
           {{{"quant_method", "exl3"}}, "\"exl3\"", "-exl3"},
           {{{"quant_method", "mxfp4"}}, "\"mxfp4\"", "-MXFP4"},
           {{{"quant_method", "modelopt"}}, "\"modelopt\"", "-NVFP4"},
           {{{"quant_method", "quark"}}, "\"quark\"", "-Quark"},
           {packed("float-quantized"), "as \"float-quantized\"", "-FP8-dynamic"},
           {packed("int-quantized"), "as \"int-quantized\"", "-quantized.w8a8"},
           {packed("pack-quantized"), "as \"pack-quantized\"", "-quantized.w4a16"},
           {packed("nvfp4-pack-quantized"), "as \"nvfp4-pack-quantized\"", "-NVFP4"},
           {packed("mxfp4-pack-quantized"), "as \"mxfp4-pack-quantized\"", "-MXFP4"},
       }) {
    const std::string error = error_of({{"quantization_config", c.config}});
    EXPECT_TRUE(contains(error, std::string("quantized with ")));
    EXPECT_TRUE(contains(error, c.method));
    EXPECT_TRUE(contains(error, fmt::format("of the same name without {};", c.without)));
    EXPECT_TRUE(contains(error, "base_model"));
  }
}

}  // namespace
}  // namespace sluice
