// Small hybrids of random weights in sizes that formats of weights ask for, which the tiny models
// of tests/golden/models, odd on purpose, do not have.
//
// Used by tests of quantized weights. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/json_type.h"

namespace sluice::testing {

// Three layers, of which the second attends.
struct HybridSizes {
  std::string architecture;
  int64_t hidden = 64;
  int64_t num_q_heads = 2;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 32;
  int64_t rotary_dim = 8;
  int64_t num_k_heads = 2;  // of linear layers, as the rest
  int64_t num_v_heads = 4;
  int64_t k_dim = 16;
  int64_t v_dim = 32;
  int64_t intermediate = 96;
  int64_t num_experts = 0;  // 0: dense; else experts and the shared one have 32 channels

  bool is_grouped() const { return architecture.starts_with("Qwen3Next"); }
  bool is_nested() const { return architecture.ends_with("ForConditionalGeneration"); }
  // A linear layer's rows of q, k and v, and those of z.
  int64_t num_channels() const { return 2 * num_k_heads * k_dim + num_v_heads * v_dim; }
  int64_t v_width() const { return num_v_heads * v_dim; }
};

// One of each architecture.
HybridSizes grouped_hybrid();
HybridSizes dense_hybrid();
HybridSizes hybrid_of_experts();

// Writes config.json and model.safetensors in bf16, with the names of published models: also
// tensors of drafts and, if the text part is nested, of vision.
void write_hybrid(const HybridSizes& sizes, const std::filesystem::path& directory);

// The method with those modules in its list that publishers leave in bf16, by the names of the
// file.
nlohmann::json with_left_out(nlohmann::json method, const HybridSizes& sizes);

}  // namespace sluice::testing
