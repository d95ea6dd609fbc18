// Reads any text as config.json, and the text after the first NUL as generation_config.json: an
// Error or a configuration that satisfies its invariants.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "model/model_config.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const sluice::ModelConfig& model) {
  require(model.vocab_size > 0 && model.hidden_size > 0 && model.num_layers() > 0);
  const auto width = [](const auto& mlp) { return mlp.intermediate_size; };
  for (const sluice::LayerSpec& layer : model.layers) require(std::visit(width, layer.mlp) > 0);
  const sluice::Attention& attention = model.attention();
  const int32_t head_dim = attention.head_dim;
  require(attention.num_kv_heads > 0 && attention.num_q_heads > 0);
  require(attention.num_q_heads % attention.num_kv_heads == 0);
  require(head_dim >= 2 && head_dim <= 256 && head_dim % 2 == 0);
  require(model.num_parameters() > 0);
  require(model.kv_bytes_per_token() > 0 && sluice::max_positions(model) > 0);
  for (const int32_t id : model.eos_ids) require(id >= 0 && id < model.vocab_size);
  const sluice::RopeFrequencies rope = sluice::rope_frequencies(model);
  require(rope.inv_freq.size() == static_cast<size_t>(head_dim) / 2);
  for (const float value : rope.inv_freq) require(std::isfinite(value) && value > 0.0f);
  require(std::isfinite(rope.attention_factor) && rope.attention_factor > 0.0f);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = text.find('\0');
  sluice::ModelConfigTexts texts{.config = text.substr(0, split)};
  if (split != text.npos) texts.generation = text.substr(split + 1);
  try {
    check(sluice::parse_model_config(texts));
  } catch (const sluice::Error&) {
  }
  return 0;
}
