// Compares a plan's bytes with each limit and words the first one that is exceeded.
#include "engine/plan/memory_fit.h"

#include <algorithm>

#include <fmt/format.h>

namespace sluice {
namespace {

// " (KV tails 14.2 GiB)": the largest device entry other than weights, or nothing.
std::string largest_beside_weights(const MemoryPlan& memory) {
  const MemoryPlanEntry* largest = nullptr;
  for (const MemoryPlanEntry& entry : memory.entries) {
    if (entry.memory != "device" || entry.name == "weights") continue;
    if (largest == nullptr || entry.bytes > largest->bytes) largest = &entry;
  }
  return largest == nullptr
             ? ""
             : fmt::format(" ({} {})", largest->name, readable_bytes(largest->bytes));
}

// The device's budget, for the end of a sentence.
std::string budget_text(const MemoryPlan& memory) {
  return fmt::format("{} of the device's {} are to be used{}",
                     readable_bytes(memory.device_budget_bytes),
                     readable_bytes(memory.device_memory_bytes),
                     memory.host_is_limited ? " in this container" : "");
}

// For a plan without a single KV block: the option, or what takes the memory instead.
std::string why_no_block(const EngineOptions& options, const EnginePlan& plan) {
  const auto& given = offloads(plan) ? options.kv.host_bytes : options.kv.cache_bytes;
  const std::string block =
      fmt::format("one KV block of {} tokens takes {}", plan.memory.block_size,
                  readable_bytes(plan.kv_layout.block_bytes_all_layers()));
  if (given) {
    return fmt::format("{} is {}, but {}", offloads(plan) ? "kv_host_bytes" : "kv_cache_bytes",
                       readable_bytes(*given), block);
  }
  if (offloads(plan)) return fmt::format("{}, and there is no memory for it", block);
  return fmt::format("weights and scratch take {} and {}, but {}",
                     readable_bytes(plan.memory.device_used_bytes()), block,
                     budget_text(plan.memory));
}

// For a plan that needs more device memory than its budget. A given KV cache size that alone
// exceeds what weights and scratch leave is blamed first; else the largest entry is named.
std::string why_over_budget(const EngineOptions& options, const EnginePlan& plan) {
  const MemoryPlan& memory = plan.memory;
  const size_t used = memory.device_used_bytes();
  const size_t kv = options.kv.cache_bytes.value_or(0);
  if (!offloads(plan) && kv != 0 && used - std::min(used, kv) < memory.device_budget_bytes) {
    return fmt::format("kv_cache_bytes is {}, but beside weights and scratch {} are left: {}",
                       readable_bytes(kv),
                       readable_bytes(memory.device_budget_bytes - (used - std::min(used, kv))),
                       budget_text(memory));
  }
  const std::string what = offloads(plan) ? "weights, activations and what KV flows through"
                                          : "weights, activations and the KV cache";
  return fmt::format("{} take {}{}, but {}", what, readable_bytes(used),
                     largest_beside_weights(memory), budget_text(memory));
}

// For a plan whose host tier, pinned buffers and, on a CPU, device memory exceed the host's memory.
std::string why_over_host(size_t used, size_t limit, const EnginePlan& plan) {
  return fmt::format("the host tier and what else is host memory take {}, but {} {}",
                     readable_bytes(used),
                     plan.memory.host_is_limited ? "what the control group (container) has left is"
                                                 : "the machine has",
                     readable_bytes(limit));
}

}  // namespace

double gibibytes(size_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::string readable_bytes(size_t bytes) {
  const auto amount = static_cast<double>(bytes);
  if (bytes < (size_t{1} << 10)) return fmt::format("{} byte{}", bytes, bytes == 1 ? "" : "s");
  if (bytes < (size_t{1} << 20)) return fmt::format("{:.2f} KiB", amount / (1 << 10));
  if (bytes < (size_t{1} << 30)) return fmt::format("{:.2f} MiB", amount / (1 << 20));
  return fmt::format("{:.2f} GiB", amount / (1 << 30));
}

EnginePlan judge_fit(const EngineOptions& options, bool shared, EnginePlan plan) {
  MemoryPlan& memory = plan.memory;
  const int64_t capacity = int64_t{plan.num_blocks} * plan.kv_layout.block.block_tokens;
  const size_t device_used = memory.device_used_bytes();
  const size_t host_used = memory.pinned_used_bytes() + (shared ? device_used : 0);
  // The limit is what a container has left, else the machine's total.
  const size_t host_limit =
      memory.host_is_limited ? memory.host_available_bytes : memory.host_memory_bytes;
  if (device_used > memory.device_budget_bytes) {
    memory.remedy = why_over_budget(options, plan);
  } else if (plan.num_blocks == 0) {
    memory.remedy = why_no_block(options, plan);
  } else if (host_used > host_limit) {
    memory.remedy = why_over_host(host_used, host_limit, plan);
  } else if (options.max_model_len.value_or(0) > capacity) {
    memory.remedy = fmt::format("max_model_len is {}, but the KV cache holds {} tokens",
                                *options.max_model_len, capacity);
  } else if (capacity < plan.max_model_len) {
    memory.warnings.push_back(
        fmt::format("max_model_len is {} instead of {}: what the KV cache holds", capacity,
                    plan.max_model_len));
    plan.max_model_len = capacity;
  }
  memory.fits = memory.remedy.empty();
  memory.max_model_len = plan.max_model_len;
  return plan;
}

}  // namespace sluice
