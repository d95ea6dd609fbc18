// Memory of a GPU, of a machine, or of a control group.
#include "engine/plan/memory_budget.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/plan/memory_fit.h"
#include "engine/plan/pass_sizes.h"
#include "engine/plan/rank_options.h"

namespace sluice {
namespace {

// Driver memory of one layer of a decode graph. Only a note depends on it.
constexpr size_t kGraphLayerBytes = size_t{40} << 10;

// Of a GPU's free memory, left to the driver, which takes some for kernels and graphs when they are
// used for the first time.
constexpr size_t kGpuReserve = size_t{512} << 20;

// Of a control group's memory, left to the process itself: code, tokenizer, threads and their
// scratch (35 MiB with the bundled model and two threads).
constexpr size_t kProcessBytes = size_t{64} << 20;

// A GPU may be in use. Memory that other programs hold cannot be planned with, and a failed
// allocation would say so only after a minute of loading.
void leave_to_others(const DeviceInfo& info, MemoryPlan& memory) {
  const size_t free_bytes = info.free_memory_bytes - std::min(info.free_memory_bytes, kGpuReserve);
  if (free_bytes >= memory.device_budget_bytes) return;
  memory.notes.push_back(
      fmt::format("{:.2f} of the device's {:.2f} GiB are to be used instead of {:.2f}: other "
                  "programs hold {:.2f}",
                  gibibytes(free_bytes), gibibytes(info.total_memory_bytes),
                  gibibytes(memory.device_budget_bytes),
                  gibibytes(info.total_memory_bytes - info.free_memory_bytes)));
  memory.device_budget_bytes = free_bytes;
}

void note_graphs(const PlanInput& input, MemoryPlan& memory) {
  if (input.options.enforce_eager) return;
  const size_t graph_bytes = static_cast<size_t>(input.config.num_layers()) * kGraphLayerBytes;
  memory.notes.push_back(
      fmt::format("decode steps become graphs: up to {} of about {:.1f} MiB, beside this plan",
                  kMaxDecodeGraphs, static_cast<double>(graph_bytes) / (1 << 20)));
}

// A CPU's device memory is host memory. Memory that a control group holds already cannot be planned
// with, and the process itself takes some; a process that passes the group's limit is killed.
void fit_into_group(const PlanInput& input, MemoryPlan& memory) {
  memory.device_memory_bytes = std::min(memory.device_memory_bytes, input.host.total_bytes);
  if (!input.host.is_limited) return;
  const size_t available = input.host.available_bytes;
  memory.device_budget_bytes = available - std::min(available, kProcessBytes);
  memory.notes.push_back(
      fmt::format("a control group (container) limits memory to {}, of which {} are available",
                  readable_bytes(input.host.total_bytes), readable_bytes(available)));
}

}  // namespace

MemoryPlan find_memory_budget(const PlanInput& input) {
  const DeviceInfo info = info_of_ranks(input.options, input.device);
  const bool is_shared = input.traits().shares_host_memory;
  MemoryPlan memory;
  memory.host_memory_bytes = input.host.total_bytes;
  memory.host_available_bytes = input.host.available_bytes;
  memory.host_is_limited = input.host.is_limited;
  memory.device_memory_bytes = info.total_memory_bytes;
  memory.device_budget_bytes = SIZE_MAX;
  if (is_shared) fit_into_group(input, memory);
  memory.device_budget_bytes =
      std::min(memory.device_budget_bytes,
               static_cast<size_t>(input.options.gpu_memory_utilization *
                                   static_cast<double>(memory.device_memory_bytes)));
  if (!is_shared) {
    leave_to_others(info, memory);
    note_graphs(input, memory);
  } else if (input.options.device == "auto") {
    memory.notes.push_back(fmt::format("device 'auto' is the CPU: {}", why_no_gpu()));
  }
  return memory;
}

}  // namespace sluice
