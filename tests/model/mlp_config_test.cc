// config.json of mixtures of experts: which layers have them, and an error for each setting of a
// router that would change results.
#include <string>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/json_type.h"
#include "model/model_config.h"

namespace sluice {
namespace {

using nlohmann::json;

const json kQwen3Moe = json::parse(R"({
  "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})");

const json kMixtral = json::parse(R"({
  "architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
  "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "vocab_size": 32000})");

ModelConfig parse_with(json config, const json& changes = json::object()) {
  config.merge_patch(changes);
  const std::string text = config.dump();
  return parse_model_config({.config = text});
}

std::string error_with(ErrorCode code, const json& config, const json& changes) {
  return expect_error(code, [&] { parse_with(config, changes); });
}

// The layers with experts.
std::vector<int> sparse_layers(const ModelConfig& model) {
  std::vector<int> layers;
  for (int32_t i = 0; i < model.num_layers(); ++i) {
    const Mlp& mlp = model.layers[static_cast<size_t>(i)].mlp;
    if (std::holds_alternative<ExpertMlp>(mlp)) layers.push_back(i);
  }
  return layers;
}

TEST(MlpConfig, ReadsQwen3Moe) {
  const ModelConfig model = parse_with(kQwen3Moe);
  EXPECT_EQ(model.architecture, Architecture::kQwen3Moe);
  EXPECT_TRUE(model.attention().qk_norm);
  EXPECT_EQ(sparse_layers(model).size(), 48u);
  const auto& mlp = std::get<ExpertMlp>(model.layers[47].mlp);
  EXPECT_EQ(mlp.num_experts, 128);
  EXPECT_EQ(mlp.num_chosen, 8);
  EXPECT_EQ(mlp.intermediate_size, 768);
  EXPECT_TRUE(mlp.normalize);
  EXPECT_EQ(model.num_parameters(), 30'532'122'624);
  EXPECT_EQ(model.num_active_parameters(), 30'532'122'624 - 48 * 120 * int64_t{3} * 2048 * 768);
  EXPECT_TRUE(model.warnings.empty());
}

TEST(MlpConfig, ReadsMixtral) {
  const ModelConfig model = parse_with(kMixtral);
  EXPECT_EQ(model.architecture, Architecture::kMixtral);
  EXPECT_EQ(model.num_parameters(), 46'702'792'704);  // the hub's count of Mixtral-8x7B
  EXPECT_TRUE(std::get<ExpertMlp>(model.layers[0].mlp).normalize);
  EXPECT_FALSE(model.attention().qkv_bias);
}

// Qwen1.5-MoE-A2.7B.
TEST(MlpConfig, ReadsQwen2Moe) {
  const json changes = {{"architectures", {"Qwen2MoeForCausalLM"}},
                        {"head_dim", nullptr},
                        {"intermediate_size", 5632},
                        {"moe_intermediate_size", 1408},
                        {"norm_topk_prob", false},
                        {"num_attention_heads", 16},
                        {"num_experts", 60},
                        {"num_experts_per_tok", 4},
                        {"num_hidden_layers", 24},
                        {"num_key_value_heads", 16},
                        {"shared_expert_intermediate_size", 5632}};
  const ModelConfig model = parse_with(kQwen3Moe, changes);
  EXPECT_EQ(model.architecture, Architecture::kQwen2Moe);
  EXPECT_EQ(std::get<ExpertMlp>(model.layers[0].mlp).shared_size, 5632);
  EXPECT_TRUE(model.attention().qkv_bias);
  EXPECT_FALSE(model.attention().o_bias);
  EXPECT_FALSE(model.attention().qk_norm);
  EXPECT_EQ(model.num_parameters(), 14'315'784'192);  // the hub's count
}

// The class of transformers does not normalise; the published files say that they do.
TEST(MlpConfig, WithoutTheKeySharesAreNotNormalised) {
  const ModelConfig model = parse_with(kQwen3Moe, {{"norm_topk_prob", nullptr}});
  EXPECT_FALSE(std::get<ExpertMlp>(model.layers[0].mlp).normalize);
}

TEST(MlpConfig, LayersMayBeDense) {
  EXPECT_EQ(
      sparse_layers(parse_with(kQwen3Moe, {{"num_hidden_layers", 6}, {"decoder_sparse_step", 2}})),
      (std::vector<int>{1, 3, 5}));
  const ModelConfig model = parse_with(
      kQwen3Moe,
      {{"num_hidden_layers", 6}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 4}}});
  EXPECT_EQ(sparse_layers(model), (std::vector<int>{1, 5}));
  EXPECT_EQ(std::get<DenseMlp>(model.layers[3].mlp).intermediate_size, 6144);
}

// transformers 5 writes Qwen's number of experts as Mixtral's.
TEST(MlpConfig, EitherNameOfTheNumberOfExpertsIsRead) {
  const ModelConfig model =
      parse_with(kQwen3Moe, {{"num_experts", nullptr}, {"num_local_experts", 64}});
  EXPECT_EQ(std::get<ExpertMlp>(model.layers[0].mlp).num_experts, 64);
}

TEST(MlpConfig, NamesWhatIsWrong) {
  const auto error = [](const json& changes) {
    return error_with(ErrorCode::kModel, kQwen3Moe, changes);
  };
  EXPECT_TRUE(contains(error({{"num_experts", 0}}), "num_experts"));
  EXPECT_TRUE(contains(error({{"num_experts_per_tok", 129}}), "at most num_experts 128"));
  EXPECT_TRUE(contains(error({{"moe_intermediate_size", nullptr}}), "moe_intermediate_size"));
  EXPECT_TRUE(contains(error({{"mlp_only_layers", {48}}}), "mlp_only_layers"));
  EXPECT_TRUE(contains(error({{"decoder_sparse_step", 0}}), "decoder_sparse_step"));
}

TEST(MlpConfig, RefusesOtherRoutersByName) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"scoring_func", "sigmoid"},
                                   {"topk_method", "noaux_tc"},
                                   {"routed_scaling_factor", 2.5},
                                   {"n_group", 8},
                                   {"n_shared_experts", 1},
                                   {"shared_expert_intermediate_size", 512},
                                   {"router_bias", true}}) {
    EXPECT_TRUE(contains(error_with(ErrorCode::kUnsupported, kQwen3Moe, {{key, value}}),
                         std::string(key) + " " + value.dump() + " is not supported"));
  }
  parse_with(kQwen3Moe, {{"scoring_func", "softmax"}, {"routed_scaling_factor", 1.0}});
}

// With experts all layers slide; Mixtral has no switch beside the window.
TEST(MlpConfig, RefusesSlidingWindows) {
  const json window = {{"use_sliding_window", true}, {"sliding_window", 4096}};
  EXPECT_TRUE(contains(error_with(ErrorCode::kUnsupported, kQwen3Moe, window),
                       "use_sliding_window is true; sliding windows are not supported"));
  EXPECT_TRUE(contains(error_with(ErrorCode::kUnsupported, kMixtral, {{"sliding_window", 4096}}),
                       "sliding_window is 4096; sliding windows are not supported (here from "
                       "layer 0 on), set it to null"));
  parse_with(kMixtral, {{"sliding_window", 32768}});
}

}  // namespace
}  // namespace sluice
