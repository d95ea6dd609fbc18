// What a model is, whether it and its KV cache fit, and what its files lack: before it is loaded.
//
// Used by `sluice inspect`, `run` and `needle`. Thread rule: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
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
  size_t device_memory_bytes = 0;   // what the device has; a CPU's is host memory
  size_t device_budget_bytes = 0;   // what gpu_memory_utilization leaves to Sluice
  size_t host_memory_bytes = 0;     // what the machine has, or the control group (container)
  size_t host_available_bytes = 0;  // of it, now
  bool host_is_limited = false;     // by a control group
  int64_t num_blocks = 0;           // of the KV cache
  int32_t block_size = 0;           // tokens
  int64_t max_model_len = 0;        // longest request that fits
  std::string kv_offload;           // "off", "chunked" or "layerwise": what "auto" became
  bool fits = false;
  std::string remedy;              // when it does not fit: why, and the one option that is enough
  std::vector<std::string> notes;  // what was chosen and why, one line each
  std::vector<std::string> warnings;  // what may be less than was asked for, or slow

  // Sums of the entries in device memory and in pinned host memory.
  size_t device_used_bytes() const { return used_bytes("device"); }
  size_t pinned_used_bytes() const { return used_bytes("pinned"); }
  size_t used_bytes(std::string_view memory) const {
    size_t sum = 0;
    for (const MemoryPlanEntry& entry : entries) sum += entry.memory == memory ? entry.bytes : 0;
    return sum;
  }
};

// What a model's files hold for `LLM` and `LLM::chat_prompt`, without loading the weights.
struct ModelCheck {
  std::string weights;    // "3 files, 290 tensors", or why there are none
  std::string tokenizer;  // "49152 tokens", or why there is none
  std::string chat;  // why chat_prompt refuses, which concerns no other prompt; "": it does not
  std::vector<std::string> problems;  // what LLM's constructor would refuse; none: it loads
  std::vector<std::string> warnings;  // what LLM::warnings would say of the files
};

// Reads everything but the weights themselves, as `options` would have it: with dummy weights there
// need be neither weights nor a tokenizer. A fault of a file is a problem, not an error.
// Errors: kModel and kUnsupported of config.json and generation_config.json, as
// summarize_model.
ModelCheck check_model(const EngineOptions& options);

// Does nothing when the directory has a chat template that chat_prompt can follow: to be asked
// before minutes of loading. Errors: those of LLM::chat_prompt; kModel for its files.
void require_chat_template(const std::string& model_dir);

// Reads the headers only. Errors: kModel, kUnsupported as LLM's constructor gives them.
ModelSummary summarize_model(const std::string& model_dir);

// The plan that LLM's constructor would follow with these options.
MemoryPlan plan_memory(const EngineOptions& options);

}  // namespace sluice
