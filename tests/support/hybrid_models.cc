// Draws numbers by a rule of their own: no part of the code under test is used but to write files.
#include "support/hybrid_models.h"

#include <cmath>
#include <utility>

#include "core/dtype.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "support/weight_copies.h"

namespace sluice::testing {
namespace {

constexpr int64_t kVocab = 160;
constexpr int64_t kExpertSize = 32;
constexpr int kNumLayers = 3;

// The tensors of a file, each drawn evenly from `mean` - `spread` to `mean` + `spread`.
class Drawn {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, float spread, float mean = 0) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<BFloat16> values;
    for (int64_t i = 0; i < count; ++i) values.emplace_back(mean + spread * next());
    tensors_.push_back({name, DType::kBF16, std::move(shape), bytes_of(values)});
  }

  void write(const std::filesystem::path& path) const {
    std::vector<SafetensorsInput> inputs;
    for (const WrittenTensor& t : tensors_) {
      inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
    }
    write_safetensors(path, inputs);
  }

 private:
  float next() {  // [-1, 1)
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state_ >> 40) * 0x1p-23f - 1;
  }

  uint64_t state_ = 1;
  std::vector<WrittenTensor> tensors_;
};

std::string text_prefix(const HybridSizes& sizes) {
  return sizes.is_nested() ? "model.language_model." : "model.";
}

// As wide as keeps sums of `count` products at the size of their terms.
float spread_of(int64_t count) { return 1.7f / std::sqrt(static_cast<float>(count)); }

void add_projection(Drawn& drawn, const std::string& module, int64_t rows, int64_t cols) {
  drawn.add(module + ".weight", {rows, cols}, spread_of(cols));
}

void add_linear_mixer(Drawn& drawn, const std::string& name, const HybridSizes& sizes) {
  const int64_t hidden = sizes.hidden, channels = sizes.num_channels(), v_heads = sizes.num_v_heads;
  if (sizes.is_grouped()) {
    add_projection(drawn, name + "in_proj_qkvz", channels + sizes.v_width(), hidden);
    add_projection(drawn, name + "in_proj_ba", 2 * v_heads, hidden);
  } else {
    add_projection(drawn, name + "in_proj_qkv", channels, hidden);
    add_projection(drawn, name + "in_proj_z", sizes.v_width(), hidden);
    add_projection(drawn, name + "in_proj_b", v_heads, hidden);
    add_projection(drawn, name + "in_proj_a", v_heads, hidden);
  }
  drawn.add(name + "conv1d.weight", {channels, 1, 4}, 0.5f);
  drawn.add(name + "A_log", {v_heads}, 1);
  drawn.add(name + "dt_bias", {v_heads}, 1);
  drawn.add(name + "norm.weight", {sizes.v_dim}, 0.1f, 1);
  add_projection(drawn, name + "out_proj", hidden, sizes.v_width());
}

void add_attention(Drawn& drawn, const std::string& name, const HybridSizes& sizes) {
  const int64_t q_width = sizes.num_q_heads * sizes.head_dim;
  const int64_t kv_width = sizes.num_kv_heads * sizes.head_dim;
  add_projection(drawn, name + "q_proj", 2 * q_width, sizes.hidden);
  add_projection(drawn, name + "k_proj", kv_width, sizes.hidden);
  add_projection(drawn, name + "v_proj", kv_width, sizes.hidden);
  add_projection(drawn, name + "o_proj", sizes.hidden, q_width);
  drawn.add(name + "q_norm.weight", {sizes.head_dim}, 0.1f);
  drawn.add(name + "k_norm.weight", {sizes.head_dim}, 0.1f);
}

void add_mlp(Drawn& drawn, const std::string& prefix, int64_t hidden, int64_t size) {
  add_projection(drawn, prefix + "gate_proj", size, hidden);
  add_projection(drawn, prefix + "up_proj", size, hidden);
  add_projection(drawn, prefix + "down_proj", hidden, size);
}

void add_mlps(Drawn& drawn, const std::string& name, const HybridSizes& sizes) {
  if (sizes.num_experts == 0) return add_mlp(drawn, name, sizes.hidden, sizes.intermediate);
  add_projection(drawn, name + "gate", sizes.num_experts, sizes.hidden);
  for (int64_t e = 0; e < sizes.num_experts; ++e) {
    add_mlp(drawn, name + "experts." + std::to_string(e) + ".", sizes.hidden, kExpertSize);
  }
  add_mlp(drawn, name + "shared_expert.", sizes.hidden, kExpertSize);
  add_projection(drawn, name + "shared_expert_gate", 1, sizes.hidden);
}

nlohmann::json text_config(const HybridSizes& sizes) {
  nlohmann::json config = {{"hidden_act", "silu"},
                           {"hidden_size", sizes.hidden},
                           {"num_hidden_layers", kNumLayers},
                           {"layer_types", nlohmann::json::array()},
                           {"num_attention_heads", sizes.num_q_heads},
                           {"num_key_value_heads", sizes.num_kv_heads},
                           {"head_dim", sizes.head_dim},
                           {"intermediate_size", sizes.intermediate},
                           {"linear_conv_kernel_dim", 4},
                           {"linear_num_key_heads", sizes.num_k_heads},
                           {"linear_num_value_heads", sizes.num_v_heads},
                           {"linear_key_head_dim", sizes.k_dim},
                           {"linear_value_head_dim", sizes.v_dim},
                           {"max_position_embeddings", 512},
                           {"rms_norm_eps", 1e-6},
                           {"vocab_size", kVocab},
                           {"eos_token_id", 1}};
  const auto share = static_cast<double>(sizes.rotary_dim) / static_cast<double>(sizes.head_dim);
  config["rope_parameters"] = {
      {"partial_rotary_factor", share}, {"rope_theta", 10000.0}, {"rope_type", "default"}};
  for (int i = 0; i < kNumLayers; ++i) {
    config["layer_types"].push_back(i == 1 ? "full_attention" : "linear_attention");
  }
  if (sizes.num_experts == 0) return config;
  config["num_experts"] = sizes.num_experts;
  config["num_experts_per_tok"] = 2;
  config["norm_topk_prob"] = true;
  config["moe_intermediate_size"] = kExpertSize;
  config["shared_expert_intermediate_size"] = kExpertSize;
  return config;
}

}  // namespace

HybridSizes grouped_hybrid() { return {.architecture = "Qwen3NextForCausalLM", .num_experts = 4}; }

HybridSizes dense_hybrid() { return {.architecture = "Qwen3_5ForConditionalGeneration"}; }

HybridSizes hybrid_of_experts() {
  return {.architecture = "Qwen3_5MoeForConditionalGeneration", .num_experts = 4};
}

void write_hybrid(const HybridSizes& sizes, const std::filesystem::path& directory) {
  nlohmann::json config = text_config(sizes);
  if (sizes.is_nested()) config = {{"text_config", config}};
  config["architectures"] = {sizes.architecture};
  config["tie_word_embeddings"] = false;
  write_file(directory / "config.json", config.dump());
  Drawn drawn;
  const std::string model = text_prefix(sizes);
  drawn.add(model + "embed_tokens.weight", {kVocab, sizes.hidden}, 1);
  for (int i = 0; i < kNumLayers; ++i) {
    const std::string name = model + "layers." + std::to_string(i) + ".";
    drawn.add(name + "input_layernorm.weight", {sizes.hidden}, 0.1f);
    drawn.add(name + "post_attention_layernorm.weight", {sizes.hidden}, 0.1f);
    i == 1 ? add_attention(drawn, name + "self_attn.", sizes)
           : add_linear_mixer(drawn, name + "linear_attn.", sizes);
    add_mlps(drawn, name + "mlp.", sizes);
  }
  drawn.add(model + "norm.weight", {sizes.hidden}, 0.1f);
  drawn.add("lm_head.weight", {kVocab, sizes.hidden}, spread_of(sizes.hidden));
  add_projection(drawn, "mtp.fc", sizes.hidden, 2 * sizes.hidden);
  add_mlp(drawn, "mtp.layers.0.mlp.", sizes.hidden, 32);
  if (sizes.is_nested()) add_projection(drawn, "model.visual.merger.linear_fc1", 8, 8);
  drawn.write(directory / "model.safetensors");
}

nlohmann::json with_left_out(nlohmann::json method, const HybridSizes& sizes) {
  const bool is_compressed = method.at("quant_method") == "compressed-tensors";
  nlohmann::json& list = method[is_compressed ? "ignore" : "modules_to_not_convert"];
  list = {"lm_head", "model.visual.merger.linear_fc1", "mtp.fc"};
  for (int i = 0; i < kNumLayers; ++i) {
    const std::string name = text_prefix(sizes) + "layers." + std::to_string(i) + ".";
    for (const char* module : {"in_proj_ba", "in_proj_b", "in_proj_a", "conv1d", "norm"}) {
      list.push_back(name + "linear_attn." + module);
    }
    if (sizes.num_experts == 0) continue;
    list.push_back(name + "mlp.gate");
    list.push_back(name + "mlp.shared_expert_gate");
  }
  return method;
}

}  // namespace sluice::testing
