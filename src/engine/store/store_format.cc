// Names and values of all that KV depends on.
#include "engine/store/store_format.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/cpu/cpu_features.h"
#include "io/model_file.h"

namespace sluice {
namespace {

// Raised by every change of a kernel, or of an order of sums, that changes bits of KV: stored KV is
// then not found any more.
constexpr int kNumericsVersion = 1;

// What the kinds of a model's layers describe: a value if it is that of all layers, otherwise the
// value of each, "-" where a layer's kinds have none.
std::map<std::string, std::string> layer_fields(const std::vector<LayerSpec>& layers) {
  std::map<std::string, std::vector<std::string>> all;
  for (size_t i = 0; i < layers.size(); ++i) {
    std::map<std::string, std::string> fields;
    const auto describe = [&](const auto& kind) { kind.describe(fields); };
    std::visit(describe, layers[i].mixer);
    std::visit(describe, layers[i].mlp);
    for (auto& [name, value] : fields) {
      all.try_emplace(name, layers.size(), "-").first->second[i] = std::move(value);
    }
  }
  std::map<std::string, std::string> out;
  for (const auto& [name, values] : all) {
    const bool equal = std::ranges::count(values, values.front()) == std::ssize(values);
    out[name] = equal ? values.front() : fmt::format("{}", fmt::join(values, ","));
  }
  return out;
}

std::map<std::string, std::string> model_fields(const ModelConfig& config) {
  std::map<std::string, std::string> fields = layer_fields(config.layers);
  fields["architecture"] = architecture_name(config.architecture);
  fields["vocab_size"] = std::to_string(config.vocab_size);
  fields["hidden_size"] = std::to_string(config.hidden_size);
  fields["num_layers"] = std::to_string(config.num_layers());
  fields["rms_norm_eps"] = fmt::format("{}", config.rms_norm_eps);
  if (const StateLayout states = config.states(); states.present()) {
    fields["states"] = fmt::format("f32 [{} v_head][k][{} columns], bf16 window, {} bytes",
                                   states.shape.num_v_heads, kDeltaColumns, states.layer_bytes());
  }
  // Past the first chunk keys have other positions, by the difference of the two sizes. Queries
  // have other angles, by both, and scores a length factor. They shape the outputs of a layer, and
  // so K and V of all layers after it.
  if (const DualChunk& dual_chunk = config.dual_chunk; dual_chunk.present()) {
    fields["dual_chunk"] =
        fmt::format("chunk_size {}, local_size {}, original_positions {}", dual_chunk.chunk_size,
                    dual_chunk.local_size, dual_chunk.original_positions);
  }
  return fields;
}

std::vector<float> rope_values(const ModelConfig& config) {
  RopeFrequencies rope = rope_frequencies(config);
  rope.inv_freq.push_back(rope.attention_factor);
  return rope.inv_freq;
}

std::string value_text(const OptionValue& value) {
  return std::visit(
      [](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
          return fmt::format("{}", v);
        } else {
          SLUICE_CHECK(false, "a list among the sparse options");
          return std::string();
        }
      },
      value);
}

// "full", or the policy with all options that are given, those of decode included: which of the two
// phases reads an option is the policies' matter. Of a profile its text counts, not its path.
std::string prefill_policy(const StoreFormatInputs& inputs) {
  const Policy& policy = inputs.policies.prefill();
  std::string text(policy.name());
  if (!policy.rule(inputs.layout.block).selects()) return text;
  SparseOptions sparse = inputs.sparse;
  if (sparse.profile) sparse.profile = read_model_file(*sparse.profile);
  sparse.policy.clear();
  sparse.audit = false;
  for (const auto& row : kSparseOptionRows) {
    if (const auto value = row.get(sparse)) {
      text += fmt::format("\n{}={}", row.facts.name, value_text(*value));
    }
  }
  return text;
}

// The CPU's kernels give the same bits on every machine of one level, and for any number of
// threads. Of a GPU the model is taken, which is more than its architecture. Several ranks round
// the sums that join them, so KV differs from the second layer on.
std::string numerics(const Device& device, int32_t num_ranks) {
  const bool is_cpu = device.kind() == DeviceKind::kCpu;
  const std::string ranks = num_ranks > 1 ? fmt::format(", {} ranks", num_ranks) : "";
  return fmt::format("{} {}, version {}{}", is_cpu ? "cpu" : "cuda",
                     is_cpu ? std::string(cpu_isa_name(best_isa())) : device.info().name,
                     kNumericsVersion, ranks);
}

}  // namespace

StoreFormat make_store_format(const StoreFormatInputs& inputs) {
  KvBlockShape block = inputs.layout.block;
  block.num_kv_heads = inputs.config.attention().num_kv_heads;
  const StateLayout states =
      shard_of(inputs.config, {.rank = 0, .num_ranks = inputs.num_ranks}).states();
  return {.fingerprint =
              make_fingerprint({.weights = inputs.weights,
                                .model = model_fields(inputs.config),
                                .rope = rope_values(inputs.config),
                                .kv_dtype = kv_block_element_name(block),
                                .block_layout = fmt::format("[{} kv_head][K,V][token][{} head_dim]",
                                                            block.num_kv_heads, block.head_dim),
                                .block_tokens = block.block_tokens,
                                .prefill_policy = prefill_policy(inputs),
                                .numerics = numerics(inputs.device, inputs.num_ranks)}),
          .layout = {.block_tokens = block.block_tokens,
                     .num_layers = inputs.layout.num_layers,
                     .layer_bytes = block.block_bytes()},
          .states = {.block_tokens = block.block_tokens,
                     .num_layers = states.num_layers,
                     .layer_bytes = static_cast<size_t>(inputs.num_ranks) * states.layer_bytes()}};
}

}  // namespace sluice
