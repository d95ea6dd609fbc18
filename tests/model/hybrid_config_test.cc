// config.json of hybrids: the published shapes and what they keep of a sequence, the forms of the
// file, and an error for each setting that would change results; and the order of channels in heads
// that rotate in part.
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/json_type.h"
#include "model/head_padding.h"
#include "model/model_config.h"

namespace sluice {
namespace {

using nlohmann::json;

// Qwen3.5-27B: the text part is nested.
const json kDense = json::parse(R"({
  "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
  "image_token_id": 248056, "tie_word_embeddings": false, "vision_config": {"depth": 27},
  "text_config": {
    "attention_bias": false, "attn_output_gate": true, "dtype": "bfloat16", "eos_token_id": 248044,
    "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 5120,
    "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1, "num_attention_heads": 24, "num_hidden_layers": 64,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "vocab_size": 248320,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10],
      "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}}})");

json moe() {
  json config = kDense;
  config["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  config.merge_patch(json::parse(R"({"model_type": "qwen3_5_moe", "text_config": {
    "hidden_size": 2048, "linear_num_value_heads": 32, "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512}})"));
  config["text_config"].erase("intermediate_size");
  return config;
}

// Qwen3-Next-80B-A3B: not nested, and the factor lies beside the theta.
json next() {
  json config = moe()["text_config"];
  config.erase("rope_parameters");
  config.merge_patch(json::parse(R"({"architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next", "decoder_sparse_step": 1, "intermediate_size": 5120,
    "mlp_only_layers": [], "norm_topk_prob": true, "num_experts": 512, "num_experts_per_tok": 10,
    "num_hidden_layers": 48, "partial_rotary_factor": 0.25, "rope_theta": 10000000,
    "tie_word_embeddings": false, "vocab_size": 151936})"));
  return config;
}

ModelConfig parse_hybrid(const json& config) {
  const std::string text = config.dump();
  return parse_model_config({.config = text});
}

// With changes of the text part.
json changed(const char* changes) {
  json config = kDense;
  config["text_config"].merge_patch(json::parse(changes));
  return config;
}

std::string refusal(const char* changes) {
  return expect_error(ErrorCode::kUnsupported, [&] { parse_hybrid(changed(changes)); });
}

constexpr double kMiB = 1 << 20;

TEST(HybridConfig, ReadsTheNestedDenseModel) {
  const ModelConfig model = parse_hybrid(kDense);
  EXPECT_EQ(model.architecture, Architecture::kQwen35);
  EXPECT_EQ(model.num_layers(), 64);
  EXPECT_EQ(model.num_kv_layers(), 16);
  EXPECT_EQ(model.kv_bytes_per_token(), 64u << 10);
  EXPECT_EQ(static_cast<double>(model.states().slot_bytes()), 146.8125 * kMiB);
  EXPECT_NEAR(static_cast<double>(model.num_parameters()), 26.9e9, 0.05e9);
  EXPECT_EQ(model.eos_ids, std::vector<int32_t>{248044});
  EXPECT_TRUE(model.warnings.empty());
  const Attention& attention = model.attention();
  EXPECT_TRUE(attention.output_gate && attention.qk_norm);
  EXPECT_EQ(attention.rotary_dim, 64);
  EXPECT_EQ(rope_frequencies(model).inv_freq.size(), 32u);
  EXPECT_EQ(model.norm_offset, 1.0f);
  // Layer 3 is the first that attends.
  for (int32_t i = 0; i < 8; ++i) {
    const LayerSpec& layer = model.layers[static_cast<size_t>(i)];
    EXPECT_EQ(std::holds_alternative<Attention>(layer.mixer), i % 4 == 3) << i;
    EXPECT_EQ(layer.kv_layer.valid(), i % 4 == 3);
    EXPECT_EQ(layer.state_layer.valid(), i % 4 != 3);
  }
  EXPECT_EQ(model.layers[7].kv_layer, LayerId(1));
  EXPECT_EQ(model.layers[6].state_layer, LayerId(5));
}

TEST(HybridConfig, ReadsMixtures) {
  const ModelConfig model = parse_hybrid(moe());
  EXPECT_EQ(model.num_kv_layers(), 10);
  EXPECT_EQ(model.kv_bytes_per_token(), 20u << 10);
  EXPECT_EQ(static_cast<double>(model.states().slot_bytes()), 61.40625 * kMiB);
  const auto& mlp = std::get<ExpertMlp>(model.layers[0].mlp);
  EXPECT_TRUE(mlp.normalize);  // without a key
  EXPECT_EQ(mlp.shared_size, 512);

  const ModelConfig grouped = parse_hybrid(next());
  EXPECT_EQ(grouped.architecture, Architecture::kQwen3Next);
  EXPECT_EQ(grouped.kv_bytes_per_token(), 24u << 10);
  EXPECT_EQ(static_cast<double>(grouped.states().slot_bytes()), 73.6875 * kMiB);
  EXPECT_EQ(grouped.attention().rotary_dim, 64);
  EXPECT_TRUE(std::get<DeltaNet>(grouped.layers[0].mixer).is_grouped);
  EXPECT_FALSE(std::get<DeltaNet>(model.layers[0].mixer).is_grouped);
}

TEST(HybridConfig, TheTextPartMayStandAlone) {
  json flat = kDense["text_config"];
  const ModelConfig nested = parse_hybrid(kDense);
  EXPECT_EQ(parse_hybrid(flat).kv_bytes_per_token(), nested.kv_bytes_per_token());  // by model_type
  flat["architectures"] = {"Qwen3_5ForCausalLM"};
  EXPECT_EQ(parse_hybrid(flat).num_parameters(), nested.num_parameters());
  flat["layer_types"] = json::array();
  for (int i = 0; i < 64; ++i) {
    flat["layer_types"].push_back(i < 60 ? "linear_attention" : "full_attention");
  }
  EXPECT_EQ(parse_hybrid(flat).num_kv_layers(), 4);  // the list decides
}

TEST(HybridConfig, SettingsThatWouldChangeResultsAreRefused) {
  EXPECT_TRUE(contains(refusal(R"({"attn_output_gate": false})"), "attn_output_gate false"));
  EXPECT_TRUE(contains(refusal(R"({"output_gate_type": "sigmoid"})"), "output_gate_type"));
  EXPECT_TRUE(contains(refusal(R"({"mamba_ssm_dtype": "bfloat16"})"), "mamba_ssm_dtype"));
  EXPECT_TRUE(contains(refusal(R"({"hidden_act": "gelu"})"), "hidden_act"));
  EXPECT_TRUE(contains(refusal(R"({"full_attention_interval": 65})"), "no layer has"));
  EXPECT_TRUE(contains(refusal(R"({"dual_chunk_attention_config": {"chunk_size": 8192}})"),
                       "dual_chunk_attention_config"));
  const auto fault = [](const char* changes) {
    return expect_error(ErrorCode::kModel, [&] { parse_hybrid(changed(changes)); });
  };
  EXPECT_TRUE(contains(fault(R"({"linear_num_value_heads": 40})"), "a multiple of"));
  EXPECT_TRUE(contains(fault(R"({"linear_num_value_heads": null})"), "linear_num_value_heads"));
  EXPECT_TRUE(contains(fault(R"({"head_dim": null})"), "head_dim"));
  EXPECT_TRUE(contains(fault(R"({"layer_types": ["full_attention"]})"), "num_hidden_layers"));
  EXPECT_TRUE(contains(fault(R"({"rope_parameters": {"partial_rotary_factor": 0.004}})"),
                       "partial_rotary_factor"));
}

// Channels 0 to 5 of 12 rotate, 0 with 3; halves have 6 channels, padded to 8.
TEST(HeadOrder, ChannelsThatRotateBeginTheHalves) {
  const HeadPadding padding{.head_dim = 12, .padded_head_dim = 16, .rotary_dim = 6};
  std::vector<float> head;
  for (int i = 0; i < 12; ++i) head.push_back(static_cast<float>(i + 1));
  const std::vector<std::byte> bytes =
      pad_heads(padding, std::as_bytes(std::span(head)), sizeof(float));
  std::vector<float> padded(16);
  ASSERT_EQ(bytes.size(), padded.size() * sizeof(float));
  std::memcpy(padded.data(), bytes.data(), bytes.size());
  EXPECT_EQ(padded, (std::vector<float>{1, 2, 3, 7, 8, 9, 0, 0, 4, 5, 6, 10, 11, 12, 0, 0}));
  EXPECT_EQ(unpad_heads(padding, padded), head);
}

}  // namespace
}  // namespace sluice
