// Keys and tensors become config.json's members, which the one reader judges.
#include "model/gguf/gguf_layers.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "io/gguf/gguf_model.h"
#include "model/config_limits.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr std::string_view kFullInterval = "full_attention_interval";
constexpr std::string_view kRecurrentLayers = "attention.recurrent_layers";

// The key, else what the tensor of the first layer that has it says: files from before 2024 lack
// some. Errors: kModel if neither is there.
int64_t size_or_tensor(const GgufMetadata& metadata, std::string_view name, std::string_view part,
                       int64_t max) {
  if (metadata.has(name)) return metadata.size(name, max);
  for (int64_t layer = 0; layer < metadata.num_layers(); ++layer) {
    const GgufTensor* tensor = metadata.find_tensor(fmt::format("blk.{}.{}", layer, part)).second;
    if (tensor != nullptr) return std::min(tensor->shape.back(), max);
  }
  return metadata.size(name, max);
}

// Settings of routers that Sluice does not have. Errors: kUnsupported naming the key.
void refuse_routers(const GgufMetadata& metadata) {
  constexpr int64_t kSoftmax = 1;  // llama.cpp's number; 0 stands for an architecture's own
  const auto gating = metadata.first().find_int(metadata.key("expert_gating_func"), 0, 1 << 20);
  if (gating.value_or(kSoftmax) > kSoftmax) {
    metadata.refuse("expert_gating_func", "only a softmax over experts is supported");
  }
  const double scale =
      metadata.first().find_double(metadata.key("expert_weights_scale")).value_or(1.0);
  if (scale != 0.0 && scale != 1.0) {  // 0: none
    metadata.refuse("expert_weights_scale", fmt::format("a scale of {} is not supported", scale));
  }
  for (const char* name : {"expert_group_count", "expert_group_used_count"}) {
    if (metadata.first().find_int(metadata.key(name), 0, 1 << 20).value_or(1) > 1) {
      metadata.refuse(name, "groups of experts are not supported");
    }
  }
}

// Whether the chosen experts' shares are divided by their sum. llama.cpp's files do not say it: its
// code divides them for all of these architectures but Qwen2-MoE. Ollama's have a key of their own.
bool normalizes(const GgufMetadata& metadata) {
  const bool own = metadata.architecture() != "qwen2moe";
  const bool always = metadata.architecture() == "llama" || metadata.architecture() == "qwen35moe";
  for (const char* name : {"expert_weights_norm", "norm_top_k_prob"}) {
    const auto found = metadata.first().find_bool(metadata.key(name));
    if (!found) continue;
    if (always && !*found) metadata.refuse(name, "the architecture always divides shares");
    return *found;
  }
  return own;
}

// Layers without experts, by their tensors: no key says which they are, and llama.cpp itself runs
// no such mixture of these architectures.
std::vector<int64_t> dense_layers(const GgufMetadata& metadata) {
  std::vector<int64_t> dense;
  for (int64_t layer = 0; layer < metadata.num_layers(); ++layer) {
    if (metadata.has_tensor(layer, "ffn_gate.weight")) dense.push_back(layer);
  }
  return dense;
}

// Of each layer whether it is linear. Three ways to say it are in use: a flag for each layer, where
// their order has no interval; 0 KV heads for those that are, in Ollama's files; and an interval.
std::vector<bool> linear_layers(const GgufMetadata& metadata) {
  const auto num_layers = static_cast<size_t>(metadata.num_layers());
  std::vector<bool> is_linear;
  std::vector<int64_t> kv_heads;
  if (metadata.has("attention.head_count_kv")) {
    kv_heads = metadata.first().get_ints(metadata.key("attention.head_count_kv"), 0, kMaxHeads);
  }
  if (metadata.has(kRecurrentLayers)) {
    for (const int64_t flag : metadata.first().get_ints(metadata.key(kRecurrentLayers), 0, 1)) {
      is_linear.push_back(flag != 0);
    }
  } else if (kv_heads.size() > 1) {
    for (const int64_t heads : kv_heads) is_linear.push_back(heads == 0);
  } else {
    const int64_t interval =
        metadata.has(kFullInterval) ? metadata.size(kFullInterval, kMaxLayers) : 4;
    for (int64_t i = 0; i < metadata.num_layers(); ++i)
      is_linear.push_back((i + 1) % interval != 0);
  }
  if (is_linear.size() < num_layers) {
    metadata.refuse(metadata.has(kRecurrentLayers) ? kRecurrentLayers : "attention.head_count_kv",
                    fmt::format("it has {} items for {} layers", is_linear.size(), num_layers));
  }
  is_linear.resize(num_layers);  // those that draft come last
  return is_linear;
}

// The share that makes `rotary` of a head's channels. Between two integers, so that the product is
// not rounded to the lower one.
double rotary_share(const GgufMetadata& metadata) {
  const int64_t head_dim = gguf_head_dim(metadata.first());
  const int64_t rotary = metadata.size("rope.dimension_count", kMaxHiddenSize);
  if (rotary > head_dim) {
    metadata.refuse("rope.dimension_count",
                    fmt::format("{} of heads of {} channels is not supported", rotary, head_dim));
  }
  return std::min(1.0, (static_cast<double>(rotary) + 0.5) / static_cast<double>(head_dim));
}

// Channels rotate by the position in time, height or width; of text all three are equal, which
// makes it the plain rotation. A fourth section has no position in text.
void check_sections(const GgufMetadata& metadata) {
  constexpr const char* kSections = "rope.dimension_sections";
  if (!metadata.has(kSections)) return;
  const auto sections = metadata.first().get_ints(metadata.key(kSections), 0, kMaxHiddenSize);
  const bool has_fourth = sections.size() > 3 && sections[3] != 0;
  if (sections.size() < 3 || sections.size() > 4 || has_fourth) {
    metadata.refuse(kSections, "other than three sections are not supported");
  }
}

}  // namespace

// Mixtral's experts have the size that other families give their dense MLPs.
void add_gguf_mlps(const GgufMetadata& metadata, json& config) {
  const bool is_mixtral = metadata.architecture() == "llama" && metadata.has_experts();
  const std::vector<int64_t> dense =
      metadata.has_experts() ? dense_layers(metadata) : std::vector<int64_t>();
  if (!metadata.has_experts() || is_mixtral || !dense.empty()) {
    config["intermediate_size"] = metadata.equal_size("feed_forward_length", kMaxIntermediateSize);
  }
  if (!metadata.has_experts()) return;
  refuse_routers(metadata);
  config["num_experts"] = metadata.size("expert_count", kMaxExperts);
  config["num_experts_per_tok"] = metadata.size("expert_used_count", kMaxExperts);
  config["norm_topk_prob"] = normalizes(metadata);
  if (is_mixtral) return;
  config["mlp_only_layers"] = dense;
  config["moe_intermediate_size"] = size_or_tensor(metadata, "expert_feed_forward_length",
                                                   "ffn_down_exps.weight", kMaxIntermediateSize);
  if (metadata.architecture() == "qwen3moe") return;
  config["shared_expert_intermediate_size"] = size_or_tensor(
      metadata, "expert_shared_feed_forward_length", "ffn_down_shexp.weight", kMaxIntermediateSize);
}

void add_gguf_hybrid(const GgufMetadata& metadata, json& config) {
  const GgufDeltaHeads heads = gguf_delta_heads(metadata.first());
  config["linear_num_key_heads"] = heads.num_k_heads;
  config["linear_num_value_heads"] = heads.num_v_heads;
  config["linear_key_head_dim"] = heads.k_dim;
  config["linear_value_head_dim"] = heads.v_dim;
  config["linear_conv_kernel_dim"] = metadata.size("ssm.conv_kernel", kMaxHiddenSize);
  config["partial_rotary_factor"] = rotary_share(metadata);
  check_sections(metadata);
  json& types = config["layer_types"] = json::array();
  for (const bool is_linear : linear_layers(metadata)) {
    types.push_back(is_linear ? "linear_attention" : "full_attention");
  }
}

// Files of Qwen3-Next, but for old ones, have the rows of in_proj_qkvz sorted, but not those of
// in_proj_ba.
void set_gguf_row_order(const GgufMetadata& metadata, ModelConfig& model) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    auto* net = std::get_if<DeltaNet>(&model.layers[i].mixer);
    if (net == nullptr || !net->is_grouped) continue;
    net->is_grouped = metadata.has_tensor(static_cast<int64_t>(i), "ssm_in.weight");
  }
}

}  // namespace sluice
