// Names and values of all that KV depends on.
#include "engine/store/store_format.h"

#include <fmt/format.h>

#include "device/cpu/cpu_features.h"
#include "io/model_file.h"

namespace sluice {
namespace {

// Raised by every change of a kernel, or of an order of sums, that changes bits of KV: stored KV is
// then not found any more.
constexpr int kNumericsVersion = 1;

std::map<std::string, std::string> model_fields(const ModelConfig& config) {
  return {{"architecture", std::string(architecture_name(config.architecture))},
          {"vocab_size", std::to_string(config.vocab_size)},
          {"hidden_size", std::to_string(config.hidden_size)},
          {"intermediate_size", std::to_string(config.intermediate_size)},
          {"num_layers", std::to_string(config.num_layers)},
          {"num_q_heads", std::to_string(config.num_q_heads)},
          {"num_kv_heads", std::to_string(config.num_kv_heads)},
          {"head_dim", std::to_string(config.head_dim)},
          {"rms_norm_eps", fmt::format("{}", config.rms_norm_eps)},
          {"qkv_bias", std::to_string(config.qkv_bias)},
          {"o_bias", std::to_string(config.o_bias)},
          {"qk_norm", std::to_string(config.qk_norm)}};
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
// threads. Of a GPU the model is taken, which is more than its architecture.
std::string numerics(const Device& device) {
  const bool is_cpu = device.kind() == DeviceKind::kCpu;
  return fmt::format("{} {}, version {}", is_cpu ? "cpu" : "cuda",
                     is_cpu ? std::string(cpu_isa_name(best_isa())) : device.info().name,
                     kNumericsVersion);
}

}  // namespace

StoreFormat make_store_format(const StoreFormatInputs& inputs) {
  const KvBlockShape& block = inputs.layout.block;
  return {.fingerprint =
              make_fingerprint({.weights = inputs.weights,
                                .model = model_fields(inputs.config),
                                .rope = rope_values(inputs.config),
                                .kv_dtype = std::string(kv_element_name(block.element)),
                                .block_layout = fmt::format("[{} kv_head][K,V][token][{} head_dim]",
                                                            block.num_kv_heads, block.head_dim),
                                .block_tokens = block.block_tokens,
                                .prefill_policy = prefill_policy(inputs),
                                .numerics = numerics(inputs.device)}),
          .layout = {.block_tokens = block.block_tokens,
                     .num_layers = inputs.layout.num_layers,
                     .layer_bytes = inputs.layout.block_bytes()}};
}

}  // namespace sluice
