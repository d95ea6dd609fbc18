// Reads the sizes of dense MLPs and of mixtures of experts.
#include "model/mlp_config.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "io/json_type.h"
#include "model/config_limits.h"

namespace sluice {
namespace {

constexpr const char* kSharedSize = "shared_expert_intermediate_size";

DenseMlp read_dense(const JsonObject& config) {
  return {.intermediate_size =
              static_cast<int32_t>(config.get_int("intermediate_size", 1, kMaxIntermediateSize))};
}

// Settings of other families' routers with the value that changes nothing. Ignoring another one
// would give wrong text.
void refuse_router_settings(const JsonObject& config, bool may_share) {
  struct Setting {
    const char* key;
    nlohmann::json neutral;
  };
  const Setting settings[] = {{"scoring_func", "softmax"},
                              {"topk_method", "greedy"},
                              {"routed_scaling_factor", 1},
                              {"n_group", 1},
                              {"topk_group", 1},
                              {"n_shared_experts", 0},
                              {kSharedSize, 0},
                              {"first_k_dense_replace", 0},
                              {"moe_layer_freq", 1},
                              {"router_bias", false}};
  for (const auto& [key, neutral] : settings) {
    if (!config.has(key) || config.get(key) == neutral) continue;
    if (may_share && std::string_view(key) == kSharedSize) continue;
    fail_unsupported(config,
                     fmt::format("{} {} is not supported for a mixture of experts; only {} "
                                 "is, choose a model without",
                                 key, describe_json(config.get(key)), describe_json(neutral)));
  }
}

// transformers' Qwen configurations write num_experts, Mixtral's num_local_experts; either reads
// both.
const char* experts_key(const JsonObject& config, bool is_mixtral) {
  const char* own = is_mixtral ? "num_local_experts" : "num_experts";
  const char* other = is_mixtral ? "num_experts" : "num_local_experts";
  return config.has(other) && !config.has(own) ? other : own;
}

// Mixtral's experts have the size that dense families give their MLPs. Its class normalises without
// a key, and so does that of Qwen3.5; that of Qwen3 does not without norm_topk_prob, which all
// published files set.
ExpertMlp read_experts(const JsonObject& config, Architecture architecture) {
  const bool is_mixtral = architecture == Architecture::kMixtral;
  const bool may_share = architecture == Architecture::kQwen2Moe || is_hybrid(architecture);
  refuse_router_settings(config, may_share);
  ExpertMlp mlp;
  const char* key = experts_key(config, is_mixtral);
  mlp.num_experts = static_cast<int32_t>(config.get_int(key, 1, kMaxExperts));
  mlp.num_chosen = static_cast<int32_t>(config.get_int("num_experts_per_tok", 1, kMaxExperts));
  if (mlp.num_chosen > mlp.num_experts) {
    config.fail("num_experts_per_tok", fmt::format("at most {} {}", key, mlp.num_experts));
  }
  mlp.names = is_mixtral ? ExpertNames::kMixtral : ExpertNames::kQwen;
  const bool always_normalizes = is_mixtral || architecture == Architecture::kQwen35Moe;
  mlp.normalize = always_normalizes || config.find_bool("norm_topk_prob").value_or(false);
  mlp.intermediate_size = static_cast<int32_t>(config.get_int(
      is_mixtral ? "intermediate_size" : "moe_intermediate_size", 1, kMaxIntermediateSize));
  if (may_share) {
    mlp.shared_size = static_cast<int32_t>(config.get_int(kSharedSize, 1, kMaxIntermediateSize));
  }
  return mlp;
}

}  // namespace

// Source: transformers' Qwen3MoeDecoderLayer: layer i has experts unless mlp_only_layers lists it
// or i + 1 is no multiple of decoder_sparse_step. In Mixtral and Qwen3.5 all layers have.
std::vector<Mlp> read_mlps(const JsonObject& config, Architecture architecture,
                           int32_t num_layers) {
  const auto count = static_cast<size_t>(num_layers);
  if (!has_experts(architecture)) return std::vector<Mlp>(count, read_dense(config));
  const bool is_mixtral = architecture == Architecture::kMixtral;
  std::vector<Mlp> mlps(count, read_experts(config, architecture));
  if (is_mixtral || architecture == Architecture::kQwen35Moe) return mlps;
  const int64_t step = config.find_int("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  const std::vector<int64_t> dense = config.find_ints("mlp_only_layers", 0, num_layers - 1);
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool is_listed = std::ranges::find(dense, i) != dense.end();
    if (is_listed || (i + 1) % step != 0) mlps[static_cast<size_t>(i)] = read_dense(config);
  }
  return mlps;
}

}  // namespace sluice
