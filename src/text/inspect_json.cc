// One object for each of the three reports of sluice/inspect.h.
#include "text/inspect_json.h"

#include "io/json_type.h"

namespace sluice {

nlohmann::ordered_json inspect_json(const ModelSummary& model, const ModelCheck& check,
                                    const MemoryPlan& plan) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const MemoryPlanEntry& entry : plan.entries) {
    entries.push_back({{"name", entry.name}, {"memory", entry.memory}, {"bytes", entry.bytes}});
  }
  return {{"model",
           {{"architecture", model.architecture},
            {"num_parameters", model.num_parameters},
            {"num_active_parameters", model.num_active_parameters},
            {"weight_bytes", model.weight_bytes},
            {"active_weight_bytes", model.active_weight_bytes},
            {"num_layers", model.num_layers},
            {"hidden_size", model.hidden_size},
            {"num_q_heads", model.num_q_heads},
            {"num_kv_heads", model.num_kv_heads},
            {"head_dim", model.head_dim},
            {"vocab_size", model.vocab_size},
            {"max_position_embeddings", model.max_position_embeddings},
            {"rope", model.rope},
            {"tied_embeddings", model.tied_embeddings},
            {"kv_bytes_per_token", model.kv_bytes_per_token},
            {"state_bytes", model.state_bytes}}},
          {"files",
           {{"weights", check.weights},
            {"tokenizer", check.tokenizer},
            {"chat", check.chat},
            {"problems", check.problems},
            {"warnings", check.warnings}}},
          {"plan",
           {{"fits", plan.fits},
            {"remedy", plan.remedy},
            {"entries", entries},
            {"device_memory_bytes", plan.device_memory_bytes},
            {"device_budget_bytes", plan.device_budget_bytes},
            {"host_memory_bytes", plan.host_memory_bytes},
            {"host_available_bytes", plan.host_available_bytes},
            {"host_is_limited", plan.host_is_limited},
            {"num_blocks", plan.num_blocks},
            {"block_size", plan.block_size},
            {"max_model_len", plan.max_model_len},
            {"kv_cache_dtype", plan.kv_cache_dtype},
            {"kv_offload", plan.kv_offload},
            {"kv_on_device", plan.kv_on_device},
            {"notes", plan.notes},
            {"warnings", plan.warnings}}}};
}

}  // namespace sluice
