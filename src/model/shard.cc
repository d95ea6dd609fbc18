// Cuts heads and hidden channels of each layer. What is not cut here is whole on every rank.
#include "model/shard.h"

#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "model/model_config.h"
#include "sluice/engine_options.h"

namespace sluice {
namespace {

std::vector<int32_t> hidden_channels(const Mlp& mlp) {
  return std::visit([](const auto& kind) { return kind.hidden_channels(); }, mlp);
}

// Whether ranks can have equal shares of the heads: of KV heads as well, or the same ones.
bool divides_heads(const DeltaNet& net, int32_t num_ranks) { return net.divides(num_ranks); }
bool divides_heads(const Attention& attention, int32_t num_ranks) {
  const int32_t kv_heads = attention.num_kv_heads;
  return attention.num_q_heads % num_ranks == 0 &&
         (kv_heads % num_ranks == 0 || num_ranks % kv_heads == 0);
}

// A vocabulary of any size is divided, since the last ranks may have fewer rows of the output head.
bool divides(const ModelConfig& config, int32_t num_ranks) {
  for (const LayerSpec& layer : config.layers) {
    const auto divides_mixer = [&](const auto& kind) { return divides_heads(kind, num_ranks); };
    if (!std::visit(divides_mixer, layer.mixer)) return false;
    for (const int32_t count : hidden_channels(layer.mlp)) {
      if (count % num_ranks != 0) return false;
    }
  }
  return true;
}

// Names every number that works, so that the next try does.
void require_divisible(const ModelConfig& config, int32_t num_ranks) {
  if (divides(config, num_ranks)) return;
  std::vector<int32_t> good;
  for (int32_t count = 1; count <= kMaxRanks; ++count) {
    if (divides(config, count)) good.push_back(count);
  }
  const Attention& attention = config.attention();
  const StateLayout states = config.states();
  fail(ErrorCode::kInvalidArgument,
       "tensor_parallel_size is {}, which does not divide the {} query heads, {} KV heads{} and {} "
       "hidden channels of the model; take one of {}",
       num_ranks, attention.num_q_heads, attention.num_kv_heads,
       states.present() ? fmt::format(", {} key heads of linear layers", states.shape.num_k_heads)
                        : "",
       fmt::join(hidden_channels(config.layers.front().mlp), " and "), fmt::join(good, ", "));
}

// Query heads stay beside the KV head that they read: with fewer KV heads than ranks, as many
// neighbours as it has copies share one.
void cut(DeltaNet& net, Shard shard) { net.cut(shard); }
void cut(Attention& attention, Shard shard) {
  attention.shard = shard;
  attention.num_q_heads /= shard.num_ranks;
  attention.kv_shard = shard;
  if (attention.num_kv_heads < shard.num_ranks) {
    const int32_t num_copies = shard.num_ranks / attention.num_kv_heads;
    attention.kv_shard = {.rank = shard.rank / num_copies, .num_ranks = attention.num_kv_heads};
  }
  attention.num_kv_heads /= attention.kv_shard.num_ranks;
}

}  // namespace

ModelConfig shard_of(const ModelConfig& config, Shard shard) {
  if (!shard.is_part()) return config;
  require_divisible(config, shard.num_ranks);
  ModelConfig part = config;
  part.quantization.gguf.erase("lm_head");  // whose rows are divided in bf16
  for (LayerSpec& layer : part.layers) {
    std::visit([&](auto& kind) { cut(kind, shard); }, layer.mixer);
    std::visit([&](auto& kind) { kind.cut(shard); }, layer.mlp);
  }
  return part;
}

}  // namespace sluice
