// Reads heads, and which layers attend.
#include "model/mixer_config.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "io/json_type.h"
#include "model/config_limits.h"

namespace sluice {
namespace {

// What is absent from config.json has the value that transformers gives it, but for sizes of
// hybrids: its defaults are those of one model, and others would load wrong weights with them.

// The widest head that attention and rope take (src/ops).
constexpr int64_t kMaxHeadDim = 256;
constexpr int32_t kQwen3HeadDim = 128;  // transformers' default when the key is absent
constexpr const char* kFull = "full_attention";
constexpr const char* kLinear = "linear_attention";

// The heads that all families spell alike. Without num_key_value_heads every query head has a KV
// head of its own (multi-head attention), as in transformers.
Attention read_heads(const JsonObject& config) {
  Attention attention;
  attention.num_q_heads = read_size(config, "num_attention_heads", kMaxHeads);
  attention.num_kv_heads = config.has("num_key_value_heads")
                               ? read_size(config, "num_key_value_heads", kMaxHeads)
                               : attention.num_q_heads;
  if (attention.num_q_heads % attention.num_kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("a divisor of num_attention_heads {}", attention.num_q_heads));
  }
  return attention;
}

// head_dim: the key, else the family's default (Qwen3) or hidden_size / num_attention_heads;
// hybrids must have the key. Odd widths fail, because rope rotates pairs of channels.
int32_t read_head_dim(const JsonObject& config, const ModelConfig& model, int32_t num_q_heads) {
  constexpr std::string_view kRange = "an even integer from 2 to 256";
  if (config.has("head_dim") || is_hybrid(model.architecture)) {
    const int64_t given = config.get_int("head_dim", 2, kMaxHeadDim);
    if (given % 2 != 0) config.fail("head_dim", kRange);
    return static_cast<int32_t>(given);
  }
  if (model.architecture == Architecture::kQwen3) return kQwen3HeadDim;
  if (model.hidden_size % num_q_heads != 0) {
    config.fail("hidden_size", fmt::format("a multiple of num_attention_heads {} when there is no "
                                           "head_dim",
                                           num_q_heads));
  }
  const int32_t head_dim = model.hidden_size / num_q_heads;
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim) {
    config.fail("head_dim",
                fmt::format("{}, but hidden_size / num_attention_heads is {}", kRange, head_dim));
  }
  return head_dim;
}

// Sets which optional weights of attention the family has.
void read_biases_and_norms(const JsonObject& config, const ModelConfig& model,
                           Attention& attention) {
  const bool attention_bias = config.find_bool("attention_bias").value_or(false);
  attention.qkv_bias = attention.o_bias = attention_bias;
  // transformers hard-codes these, whatever the key says. Of mixtures Qwen2 alone has a key for its
  // bias; Qwen3 has none and norms of heads instead.
  if (model.architecture == Architecture::kQwen2 || model.architecture == Architecture::kQwen2Moe) {
    const bool is_dense = model.architecture == Architecture::kQwen2;
    attention.qkv_bias = is_dense || config.find_bool("qkv_bias").value_or(true);
    attention.o_bias = false;
  }
  if (model.architecture == Architecture::kMixtral) attention.qkv_bias = attention.o_bias = false;
  attention.qk_norm = model.architecture == Architecture::kQwen3 ||
                      model.architecture == Architecture::kQwen3Moe ||
                      is_hybrid(model.architecture);
}

// ---- Hybrids ----------------------------------------------------------------------------------

// Settings with one value that is implemented, which is also that of a file without them.
void refuse_hybrid_settings(const JsonObject& config) {
  struct Setting {
    const char* key;
    nlohmann::json only;
  };
  const Setting settings[] = {{"attn_output_gate", true},
                              {"output_gate_type", "swish"},
                              {"mamba_ssm_dtype", "float32"},
                              {"attention_bias", false}};
  for (const auto& [key, only] : settings) {
    if (!config.has(key) || config.get(key) == only) continue;
    fail_unsupported(config, fmt::format("{} {} is not supported; only {} is, choose a model with "
                                         "that",
                                         key, describe_json(config.get(key)), describe_json(only)));
  }
}

// The channels that rotate. Source: transformers' rope of a share of the head: the integer below.
void read_rotation(const JsonObject& config, const ModelConfig& model, Attention& attention) {
  const auto rotary_dim = static_cast<int32_t>(attention.head_dim * model.rope.rotary_share);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    config.fail("partial_rotary_factor",
                fmt::format("a share that makes an even number of the {} channels of a head, at "
                            "least 2; it is {}",
                            attention.head_dim, rotary_dim));
  }
  attention.rotary_dim = rotary_dim == attention.head_dim ? 0 : rotary_dim;
}

DeltaNet read_delta_net(const JsonObject& config, const ModelConfig& model) {
  DeltaNet net;
  net.shape = {
      .num_k_heads = read_size(config, "linear_num_key_heads", kMaxHeads),
      .num_v_heads = read_size(config, "linear_num_value_heads", kMaxHeads),
      .k_dim = read_size(config, "linear_key_head_dim", kMaxDeltaKDim),
      .v_dim = read_size(config, "linear_value_head_dim", kMaxDeltaKDim),
      .num_taps = static_cast<int32_t>(config.get_int("linear_conv_kernel_dim", 2, kMaxConvTaps))};
  if (net.shape.num_v_heads % net.shape.num_k_heads != 0) {
    config.fail("linear_num_value_heads",
                fmt::format("a multiple of linear_num_key_heads {}", net.shape.num_k_heads));
  }
  net.is_grouped = net.groups_gates = model.architecture == Architecture::kQwen3Next;
  return net;
}

// Which layers attend: those that layer_types says, else every full_attention_interval-th.
std::vector<bool> read_full_layers(const JsonObject& config, int32_t num_layers) {
  const std::vector<std::string> types = config.find_strings("layer_types");
  std::vector<bool> is_full;
  if (types.empty()) {
    const int64_t interval = config.find_int("full_attention_interval", 1, kMaxLayers).value_or(4);
    for (int64_t i = 0; i < num_layers; ++i) is_full.push_back((i + 1) % interval == 0);
  }
  for (const std::string& type : types) {
    if (type != kFull && type != kLinear) {
      fail_unsupported(config,
                       fmt::format("layer_types has {}; only {} and {} are supported, choose "
                                   "a model of these",
                                   describe_json(type), kFull, kLinear));
    }
    is_full.push_back(type == kFull);
  }
  if (std::ssize(is_full) != num_layers) {
    config.fail("layer_types", fmt::format("a list of num_hidden_layers {} types", num_layers));
  }
  if (std::ranges::find(is_full, true) == is_full.end()) {
    fail_unsupported(config,
                     fmt::format("no layer has {}; models without KV are not supported", kFull));
  }
  return is_full;
}

}  // namespace

std::vector<TokenMixer> read_mixers(const JsonObject& config, const ModelConfig& model,
                                    int32_t num_layers) {
  Attention attention = read_heads(config);
  attention.head_dim = read_head_dim(config, model, attention.num_q_heads);
  read_biases_and_norms(config, model, attention);
  if (!is_hybrid(model.architecture)) {
    return std::vector<TokenMixer>(static_cast<size_t>(num_layers), attention);
  }
  refuse_hybrid_settings(config);
  attention.norm_offset = 1.0f;
  attention.output_gate = true;
  read_rotation(config, model, attention);
  const DeltaNet delta_net = read_delta_net(config, model);
  std::vector<TokenMixer> mixers;
  for (const bool is_full : read_full_layers(config, num_layers)) {
    mixers.push_back(is_full ? TokenMixer(attention) : TokenMixer(delta_net));
  }
  return mixers;
}

}  // namespace sluice
