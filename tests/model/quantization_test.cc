// Quantized weights: FP8 and integers are read_format; of others the error names the method, the
// setting and what to fetch instead.
#include "model/quantization.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/json.h"
#include "io/json_type.h"
#include "model/model_config.h"

namespace sluice {
namespace {

using nlohmann::json;

// The error for a small Llama with these keys.
std::string format_error(const json& keys) {
  json config = json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "max_position_embeddings": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "vocab_size": 160})");
  config.update(keys);
  return expect_error(ErrorCode::kUnsupported,
                      [&] { parse_model_config({.config = config.dump()}); });
}

TEST(Quantization, NamesTheMethodOfAQuantization) {
  const auto refused = [](const json& changes) { return format_error(changes); };
  EXPECT_TRUE(contains(refused({{"quantization_config", {{"quant_method", "gptq"}, {"bits", 3}}}}),
                       "quantized with \"gptq\" in 3 bits"));
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
           {{{"quant_method", "fbgemm_fp8"}}, "\"fbgemm_fp8\"", "-FP8"},
           {{{"quant_method", "awq"}, {"bits", 3}}, "\"awq\" in 3 bits", "-AWQ"},
           {{{"quant_method", "gptq"}, {"bits", 2}}, "\"gptq\" in 2 bits", "-GPTQ-Int4"},
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
    const std::string error = format_error({{"quantization_config", c.config}});
    EXPECT_TRUE(contains(error, std::string("quantized with ")));
    EXPECT_TRUE(contains(error, c.method));
    EXPECT_TRUE(contains(error, fmt::format("of the same name without {};", c.without)));
    EXPECT_TRUE(contains(error, "base_model"));
  }
}

WeightQuantization read_format(const json& given) {
  const json config = {{"quantization_config", given}};
  return read_quantization(JsonObject(config, "config.json"));
}

// As Qwen writes it.
TEST(Quantization, ReadsFp8InBlocks) {
  const WeightQuantization fp8 = read_format({{"quant_method", "fp8"},
                                              {"fmt", "e4m3"},
                                              {"activation_scheme", "dynamic"},
                                              {"weight_block_size", {128, 128}},
                                              {"modules_to_not_convert", {"model.layers.0.mlp"}}});
  EXPECT_EQ(fp8.scales, WeightScales::kBlocks);
  EXPECT_EQ(fp8.scale_suffix, ".weight_scale_inv");
  EXPECT_EQ(fp8.format_of("model.layers.0.self_attn.q_proj"), WeightFormat::kE4m3Groups);
  EXPECT_EQ(fp8.format_of("model.layers.0.mlp.up_proj"), WeightFormat::kBFloat16);
  EXPECT_EQ(fp8.format_of("model.layers.0.mlp2"), WeightFormat::kE4m3Groups);
  EXPECT_EQ(fp8.format_of("lm_head"), WeightFormat::kBFloat16);
  EXPECT_EQ(read_format({{"quant_method", "fp8"}}).scales, WeightScales::kTensor);
  EXPECT_NO_THROW(read_format({{"quant_method", "fp8"}, {"scale_fmt", "ue8m0"}}));
  const std::string error = expect_error(ErrorCode::kModel, [] {
    read_format({{"quant_method", "fp8"}, {"scale_fmt", "e5m2"}});
  });
  EXPECT_TRUE(contains(error, "scale_fmt")) << error;
}

// Lists name modules of a nested text part as they are nested, here those of Qwen3.5, or by the
// ends of their names, as transformers' should_convert_module takes them.
TEST(Quantization, ListsMayNameModulesAsNestedOrByTheirEnds) {
  const std::string linear = "model.layers.0.linear_attn.";
  const WeightQuantization fp8 = read_format(
      {{"quant_method", "fp8"},
       {"weight_block_size", {128, 128}},
       {"modules_to_not_convert",
        {"model.language_model.layers.0.linear_attn.in_proj_a", "linear_attn.in_proj_b"}}});
  EXPECT_EQ(fp8.format_of(linear + "in_proj_a"), WeightFormat::kBFloat16);
  EXPECT_EQ(fp8.format_of(linear + "in_proj_b"), WeightFormat::kBFloat16);
  EXPECT_EQ(fp8.format_of(linear + "in_proj_qkv"), WeightFormat::kE4m3Groups);
  EXPECT_EQ(fp8.format_of("model.layers.1.linear_attn.in_proj_a"), WeightFormat::kE4m3Groups);
  const json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  const WeightQuantization compressed = read_format(
      {{"quant_method", "compressed-tensors"},
       {"format", "float-quantized"},
       {"ignore", {"re:model[.]language_model[.]layers[.]0[.]", "re:.*in_proj_b$"}},
       {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}});
  EXPECT_EQ(compressed.format_of(linear + "out_proj"), WeightFormat::kBFloat16);
  EXPECT_EQ(compressed.format_of("model.layers.1.linear_attn.in_proj_b"), WeightFormat::kBFloat16);
  EXPECT_EQ(compressed.format_of("model.layers.1.linear_attn.out_proj"), WeightFormat::kE4m3Rows);
  const WeightQuantization awq =
      read_format({{"quant_method", "awq"},
                   {"bits", 4},
                   {"group_size", 128},
                   {"modules_to_not_convert", {"language_model.layers.0."}}});
  EXPECT_EQ(awq.format_of(linear + "out_proj"), WeightFormat::kBFloat16);
  EXPECT_TRUE(stores_integers(awq.format_of("model.layers.1.linear_attn.out_proj")));
}

// As llm-compressor writes it.
TEST(Quantization, ReadsCompressedTensorsInFp8) {
  const auto compressed = [](json weights) {
    weights["num_bits"] = 8;
    weights["type"] = "float";
    return json{{"quant_method", "compressed-tensors"},
                {"format", "float-quantized"},
                {"ignore", {"lm_head", "re:.*gate$"}},
                {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
  };
  const WeightQuantization rows = read_format(compressed({{"strategy", "channel"}}));
  EXPECT_EQ(rows.scales, WeightScales::kRows);
  EXPECT_EQ(rows.format_of("model.layers.0.mlp.gate"), WeightFormat::kBFloat16);
  EXPECT_EQ(rows.format_of("model.layers.0.mlp.gate_proj"), WeightFormat::kE4m3Rows);
  json by_beginning = compressed({{"strategy", "channel"}});
  by_beginning["ignore"] = {"re:model.layers.1.mlp"};
  EXPECT_EQ(read_format(by_beginning).format_of("model.layers.1.mlp.up_proj"),
            WeightFormat::kBFloat16);
  EXPECT_EQ(read_format(compressed({{"strategy", "tensor"}})).scales, WeightScales::kTensor);
  const json blocks = {{"strategy", "block"}, {"block_structure", {128, 128}}};
  EXPECT_EQ(read_format(compressed(blocks)).scales, WeightScales::kBlocks);
  for (const json& wrong :
       {json{{"strategy", "group"}}, json{{"strategy", "block"}, {"block_structure", {64, 64}}}}) {
    expect_error(ErrorCode::kModel, [&] { read_format(compressed(wrong)); });
  }
}

// ---- Integers ---------------------------------------------------------------------------------

// As AutoAWQ writes it.
json awq() {
  return {{"quant_method", "awq"}, {"bits", 4},
          {"group_size", 128},     {"zero_point", true},
          {"version", "gemm"},     {"modules_to_not_convert", {"visual", "mlp.gate"}}};
}

// As AutoGPTQ writes it.
json gptq() {
  return {{"quant_method", "gptq"}, {"bits", 4},       {"group_size", 128},
          {"desc_act", false},      {"sym", true},     {"damp_percent", 0.01},
          {"dynamic", nullptr},     {"lm_head", false}};
}

// As llm-compressor writes it.
json packed() {
  const json weights = {{"num_bits", 4},       {"type", "int"},     {"symmetric", true},
                        {"strategy", "group"}, {"group_size", 128}, {"actorder", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"ignore", {"lm_head", "re:.*mlp.gate$"}},
          {"sparsity_config", json::object()},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}}}}}};
}

// The same in FP8.
json float_quantized() {
  json config = packed();
  config["format"] = "float-quantized";
  config["config_groups"]["group_0"]["weights"] = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  return config;
}

json& weights_of(json& packed) { return packed["config_groups"]["group_0"]["weights"]; }

constexpr WeightFormat kFourBits = {.numbers = WeightNumbers::kUint4, .group_cols = 128};

TEST(Quantization, ReadsAwq) {
  const WeightQuantization read_awq = read_format(awq());
  EXPECT_EQ(read_awq.integers, IntegerForm::kAwq);
  EXPECT_EQ(read_awq.format_of("model.layers.0.mlp.up_proj"), kFourBits);
  // Any part of a name leaves the module out, as transformers does.
  EXPECT_EQ(read_awq.format_of("model.layers.0.mlp.gate_proj"), WeightFormat::kBFloat16);
  EXPECT_EQ(read_awq.format_of("lm_head"), WeightFormat::kBFloat16);
}

TEST(Quantization, ReadsGptq) {
  EXPECT_EQ(read_format(gptq()).integers, IntegerForm::kGptq);
  EXPECT_EQ(read_format(gptq()).format_of("model.layers.0.mlp.up_proj"), kFourBits);
  json changed = gptq();
  changed.update({{"checkpoint_format", "gptq_v2"}, {"bits", 8}, {"desc_act", true}});
  EXPECT_EQ(read_format(changed).integers, IntegerForm::kGptqV2);
  EXPECT_EQ(read_format(changed).integer_format,
            (WeightFormat{.numbers = WeightNumbers::kUint8, .group_cols = 128, .num_orders = 1}));
  changed["group_size"] = -1;  // one group has one order
  EXPECT_EQ(read_format(changed).integer_format, WeightFormat{.numbers = WeightNumbers::kUint8});
}

// As Qwen3.5's files of 4 bits have it.
TEST(Quantization, ReadsWhatDynamicLeavesOut) {
  json changed = gptq();
  changed["dynamic"] = {{"lm_head", json::object()},
                        {"model.language_model.embed_tokens", json::object()},
                        {"-:.*attn.*", json::object()},
                        {"-:.*shared_expert.*", json::object()},
                        {"-:model.language_model.layers.1[.]", json::object()}};
  const WeightQuantization quantization = read_format(changed);
  EXPECT_EQ(quantization.format_of("model.layers.0.mlp.experts.3.up_proj"), kFourBits);
  for (const char* module :
       {"model.layers.0.linear_attn.out_proj", "model.layers.0.self_attn.q_proj",
        "model.layers.0.mlp.shared_expert.up_proj", "model.layers.1.mlp.experts.3.up_proj"}) {
    EXPECT_EQ(quantization.format_of(module), WeightFormat::kBFloat16) << module;
  }
  changed["dynamic"] = {{"-:(", json::object()}};
  expect_error(ErrorCode::kModel, [&] { read_format(changed); });
}

TEST(Quantization, ReadsPackQuantized) {
  EXPECT_EQ(read_format(packed()).integers, IntegerForm::kPackQuantized);
  EXPECT_TRUE(read_format(packed()).symmetric);
  EXPECT_EQ(read_format(packed()).integer_format, kFourBits);
  EXPECT_EQ(read_format(packed()).format_of("model.layers.0.mlp.gate"), WeightFormat::kBFloat16);
  json channel = packed();
  weights_of(channel).update(
      {{"num_bits", 8}, {"strategy", "channel"}, {"group_size", nullptr}, {"symmetric", false}});
  EXPECT_EQ(read_format(channel).integer_format, WeightFormat{.numbers = WeightNumbers::kUint8});
  EXPECT_FALSE(read_format(channel).symmetric);
  json ordered = packed();
  weights_of(ordered)["actorder"] = "weight";
  EXPECT_EQ(read_format(ordered).integer_format, kFourBits);
  weights_of(ordered)["actorder"] = "group";
  EXPECT_EQ(read_format(ordered).integer_format.num_orders, 1);
}

// What changes the meaning of the tensors and has no reader is named.
TEST(Quantization, NamesTheSettingThatIsNotRead) {
  const auto expect = [](json config, const json& changes, const std::string& setting) {
    config.update(changes);
    const std::string error = format_error({{"quantization_config", config}});
    EXPECT_TRUE(contains(error, "with " + setting)) << error;
    EXPECT_TRUE(contains(error, "of the same name without -")) << error;
  };
  expect(awq(), {{"version", "gemv"}}, "version \"gemv\"");
  expect(awq(), {{"version", "marlin"}}, "version \"marlin\"");
  expect(awq(), {{"backend", "llm-awq"}}, "backend \"llm-awq\"");
  expect(awq(), {{"zero_point", false}}, "zero_point false");
  expect(awq(), {{"bits", 8}}, "bits 8");
  expect(awq(), {{"group_size", 100}}, "group_size 100");
  expect(gptq(), {{"bits", 2}}, "bits 2");
  expect(gptq(), {{"bits", 3}}, "bits 3");
  expect(gptq(), {{"checkpoint_format", "marlin"}}, "checkpoint_format \"marlin\"");
  expect(gptq(), {{"is_marlin_format", true}}, "is_marlin_format true");
  expect(gptq(), {{"dynamic", {{"+:.*down.*", {{"bits", 8}}}}}}, "settings for \"+:.*down.*\" in ");
  expect(gptq(), {{"lm_head", true}}, "lm_head true");
  for (const json& compressed : {packed(), float_quantized()}) {
    json changed = compressed;
    changed["config_groups"]["group_1"] = changed["config_groups"]["group_0"];
    expect(changed, json::object(), "config_groups of 2 groups");
    changed = compressed;
    changed["config_groups"]["group_0"]["targets"] = {"re:.*mlp.*"};
    expect(changed, json::object(), "targets other than");
    changed["config_groups"]["group_0"]["targets"] = {"Linear", "Embedding"};
    expect(changed, json::object(), "targets other than");
    changed = compressed;
    changed["config_groups"]["group_0"]["format"] = "int-quantized";
    expect(changed, json::object(), "format \"int-quantized\"");
    expect(compressed, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}, "format ");
    expect(compressed, {{"transform_config", {{"config_groups", {{"u", 1}}}}}},
           "transform_config ");
  }
  json changed = packed();
  weights_of(changed)["num_bits"] = 3;
  expect(changed, json::object(), "num_bits 3");
  weights_of(changed)["type"] = "float";
  expect(changed, json::object(), "type \"float\"");
}

// Patterns come from a file that anyone may have written.
TEST(Quantization, RefusesPatternsThatAreWrongOrTakeForever) {
  json config = {
      {"quant_method", "compressed-tensors"},
      {"format", "float-quantized"},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}},
          {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}}}}}}};
  config["ignore"] = {"re:(layers"};
  expect_error(ErrorCode::kModel, [&] { read_format(config); });
  config["ignore"] = {"re:(([a-z.])+)+$"};
  const WeightQuantization hostile = read_format(config);
  expect_error(ErrorCode::kModel, [&] {
    hostile.format_of("model.layers.self_attn.q_proj.model.layers.self_attn.q_proj.mlp!");
  });
}

}  // namespace
}  // namespace sluice
