// What is known of a model before it is loaded: its shape, its memory plan, the faults of its
// files.
//
// Used by `sluice inspect`, `run` and `needle`. Thread rule: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/chat.h"
#include "sluice/engine_options.h"

namespace sluice {

// The properties of a model by config.json and the headers of its weight files.
struct ModelSummary {
  std::string architecture;  // "Qwen3ForCausalLM"
  int64_t num_parameters = 0;
  int64_t num_active_parameters = 0;  // without the experts that a token does not choose
  size_t weight_bytes = 0;            // in their formats
  std::string weight_formats;         // "bf16", or "integers of 4 bits, others bf16"
  size_t active_weight_bytes = 0;     // of num_active_parameters
  int32_t num_layers = 0;
  int32_t num_kv_layers = 0;  // with attention; the other layers of a hybrid have states
  int32_t hidden_size = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  std::string rope;  // "llama3, factor 8 over 8192" or "none"
  bool tied_embeddings = false;
  size_t kv_bytes_per_token = 0;  // with the KvCacheDtype that was asked about
  size_t state_bytes = 0;         // of a sequence, whatever its length; only hybrids have states
};

// One line of the memory plan.
struct MemoryPlanEntry {
  std::string name;    // "weights", "KV cache", "activations", ...
  std::string memory;  // "device", "pinned", "host"
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryPlanEntry> entries;
  size_t device_memory_bytes = 0;   // total of the device; of a CPU: host memory
  size_t device_budget_bytes = 0;   // share that gpu_memory_utilization allows
  size_t host_memory_bytes = 0;     // of the machine, or the limit of its control group
  size_t host_available_bytes = 0;  // of host_memory_bytes, at the time of the call
  bool host_is_limited = false;     // host_memory_bytes is a limit of a control group
  int64_t num_blocks = 0;           // of the KV cache
  int32_t block_size = 0;           // tokens
  int64_t max_model_len = 0;        // longest request that fits
  std::string kv_cache_dtype;       // "bf16", "fp8_e4m3" or "int8"; never "auto"
  std::string kv_offload;           // "off", "chunked" or "layerwise"; never "auto"
  // What device memory keeps of offloaded KV beside ring, stage and tails: "all blocks", "hot
  // pages", "blocks that stay" or "none"; empty with KV on the device. A note says why.
  std::string kv_on_device;
  bool fits = false;
  std::string remedy;              // if it does not fit: why, and one option that would make it fit
  std::vector<std::string> notes;  // automatic choices with their reasons, one line each
  std::vector<std::string> warnings;  // options that were reduced or may be slow, one line each

  // Sums of the entries in device memory and in pinned host memory.
  size_t device_used_bytes() const { return used_bytes("device"); }
  size_t pinned_used_bytes() const { return used_bytes("pinned"); }
  size_t used_bytes(std::string_view memory) const {
    size_t sum = 0;
    for (const MemoryPlanEntry& entry : entries) sum += entry.memory == memory ? entry.bytes : 0;
    return sum;
  }
};

// Whether a model's files are complete and consistent.
struct ModelCheck {
  std::string weights;    // "3 files, 290 tensors", or why there are none
  std::string tokenizer;  // "49152 tokens", or why it cannot be read
  std::string chat;  // why LLM::chat_prompt would fail (other prompts still work); "": it works
  std::vector<std::string> problems;  // faults that LLM's constructor would throw; none: it loads
  std::vector<std::string> warnings;  // those of LLM::warnings that concern the files
};

// Reads everything but the weights' values (of a tied output head that the files repeat, its values
// and the embedding's up to their first difference), under `options`: with LoadFormat::kDummy
// weights and tokenizer may be absent. A fault of such a file is listed in `problems` and not
// thrown. Errors: kModel and kUnsupported of config.json and generation_config.json, as
// summarize_model.
ModelCheck check_model(const EngineOptions& options);

// Throws unless `options` give a chat template, of their own or the model's, that chat_prompt can
// use with `chat`. A command calls it before it loads weights, which may take minutes.
// Errors: those of LLM::chat_prompt; kModel for its files.
void require_chat_template(const EngineOptions& options, const ChatOptions& chat = {});

// Reads the headers, and a tied head as check_model. Errors: kModel, kUnsupported as LLM's
// constructor gives them.
ModelSummary summarize_model(const std::string& model_dir,
                             KvCacheDtype kv_cache_dtype = KvCacheDtype::kAuto);

// The plan that LLM's constructor would follow with these options.
MemoryPlan plan_memory(const EngineOptions& options);

// A machine with one GPU, which need not be this one.
struct PlannedMachine {
  // As a driver reports it: a card of "24 GB" has 23.5 to 24 GiB.
  size_t gpu_bytes = 0;   // memory of the GPU, of which nothing is in use
  size_t host_bytes = 0;  // memory of the host that is available
};

// The plan of the same options on such a machine; options.device has no effect. Rates of the link
// are defaults, since none was measured.
MemoryPlan plan_memory(const EngineOptions& options, const PlannedMachine& machine);

}  // namespace sluice
