// What a model is and what of it fits, known before anything is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sluice/engine_options.h"

namespace sluice {

// What config.json and the weight files' headers say.
struct ModelSummary {
  std::string architecture;  // "Qwen3ForCausalLM"
  int64_t num_parameters = 0;
  size_t weight_bytes = 0;  // in device memory, bf16
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  std::string rope;  // "llama3, factor 8 over 8192" or "none"
  bool tied_embeddings = false;
  size_t kv_bytes_per_token = 0;
};

// One line of the memory plan.
struct MemoryPlanEntry {
  std::string name;    // "weights", "KV cache", "activations", ...
  std::string memory;  // "device", "pinned", "host"
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryPlanEntry> entries;
  size_t device_memory_bytes = 0;  // what the device has
  size_t device_budget_bytes = 0;  // what gpu_memory_utilization leaves to Sluice
  int64_t num_blocks = 0;          // of the KV cache
  int32_t block_size = 0;          // tokens
  int64_t max_model_len = 0;       // longest request that fits
  std::string kv_offload;          // "off", "chunked" or "layerwise": what "auto" became
  bool fits = false;
  std::string remedy;              // when it does not fit: what to change
  std::vector<std::string> notes;  // what was chosen or reduced and why, one line each

  // Sum of the entries in device memory.
  size_t device_used_bytes() const {
    size_t sum = 0;
    for (const MemoryPlanEntry& entry : entries) sum += entry.memory == "device" ? entry.bytes : 0;
    return sum;
  }
};

// Reads the headers only. Errors: kModel, kIo as LLM's constructor gives them.
ModelSummary summarize_model(const std::string& model_dir);

// The plan that LLM's constructor would follow with these options.
MemoryPlan plan_memory(const EngineOptions& options);

}  // namespace sluice
