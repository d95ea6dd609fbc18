// Verdicts and remedies.
#include "engine/memory_fit.h"

#include <fmt/format.h>

#include "device/cpu/cpu_memory.h"

namespace sluice {

double gibibytes(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// Says what to change when there is no room for even one block, or not for the length asked for.
void judge_fit(const EngineOptions& options, size_t fixed_bytes, EnginePlan& plan) {
  MemoryPlan& memory = plan.memory;
  const int64_t capacity = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  memory.fits = plan.num_blocks > 0 && fixed_bytes <= memory.device_budget_bytes &&
                memory.device_used_bytes() <= memory.device_budget_bytes;
  if (!memory.fits) {
    memory.remedy = fmt::format(
        "weights and scratch take {:.2f} GiB and one KV block {:.2f} MiB, but {:.2f} GiB of the "
        "device's {:.2f} GiB are to be used; raise gpu_memory_utilization, lower "
        "max_num_batched_tokens, max_num_seqs or kv_cache_bytes, use kv_offload, or take a smaller "
        "model",
        static_cast<double>(fixed_bytes) / (1 << 30),
        static_cast<double>(plan.kv_layout.block_bytes_all_layers()) / (1 << 20),
        static_cast<double>(memory.device_budget_bytes) / (1 << 30),
        static_cast<double>(memory.device_memory_bytes) / (1 << 30));
  } else if (options.max_model_len > capacity) {
    memory.fits = false;
    memory.remedy = fmt::format(
        "max_model_len is {}, but the KV cache holds {} tokens; raise {}, or lower max_model_len",
        options.max_model_len, capacity,
        offloads(plan) ? "kv_host_bytes" : "kv_cache_bytes or gpu_memory_utilization");
  } else if (capacity < plan.max_model_len) {
    plan.notes.push_back(fmt::format("max_model_len is {} instead of {}: what the KV cache holds",
                                     capacity, plan.max_model_len));
    plan.max_model_len = capacity;
  }
  memory.max_model_len = plan.max_model_len;
}

// As judge_fit, for what only offloaded KV can lack: host memory, and room for the ring.
void judge_offload_fit(size_t summary_bytes, EnginePlan& plan) {
  MemoryPlan& memory = plan.memory;
  const size_t host_bytes = OffloadEngine::pinned_bytes(plan.kv_layout, plan.offload);
  const size_t machine_bytes = machine_memory_bytes();
  if (plan.num_blocks == 0) {
    memory.remedy = fmt::format(
        "the host tier has no room for one KV block of {} tokens, which takes {:.2f} MiB; raise "
        "kv_host_bytes or lower block_size",
        memory.block_size,
        static_cast<double>(plan.kv_layout.block_bytes_all_layers()) / (1 << 20));
  } else if (memory.device_used_bytes() > memory.device_budget_bytes) {
    memory.remedy = fmt::format(
        "weights, activations and what KV flows through take {:.2f} GiB, but {:.2f} GiB of the "
        "device's {:.2f} GiB are to be used; lower {}, num_kv_slots, kv_slot_blocks, "
        "kv_device_bytes or max_num_seqs, or raise gpu_memory_utilization",
        gibibytes(memory.device_used_bytes()), gibibytes(memory.device_budget_bytes),
        gibibytes(memory.device_memory_bytes),
        plan.kv_offload == KvOffload::kLayerwise ? "max_model_len (or use kv_offload 'chunked')"
                                                 : "max_num_batched_tokens");
    if (summary_bytes > 0) {
      memory.remedy += fmt::format(
          "; the policy's summaries of the host tier take {:.2f} GiB: raise sparse_page_tokens or "
          "lower kv_host_bytes",
          gibibytes(summary_bytes));
    }
  } else if (host_bytes > machine_bytes) {
    memory.fits = false;
    memory.remedy = fmt::format(
        "the host tier takes {:.2f} GiB, but the machine has {:.2f} GiB; lower kv_host_bytes",
        gibibytes(host_bytes), gibibytes(machine_bytes));
  }
}

}  // namespace sluice
