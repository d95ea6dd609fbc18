// Judges sizes with the engine's default share of the memory and round figures for all else.
#include "cli/doctor/verdict.h"

#include <fmt/format.h>

#include "cli/units.h"

namespace sluice::cli {
namespace {

constexpr double kShare = 0.9;  // gpu_memory_utilization
// Activations, the ring and the stage of offloaded KV: what `inspect` shows for models of 0.6B to
// 8B.
constexpr size_t kWorkBytes = size_t{3} << 29;
constexpr size_t kRingBytes = size_t{1} << 30;

std::string on_cpu(const UsualModel& model, size_t kv_bytes, const VerdictMachine& machine) {
  // KV of all tokens, since a CPU has no other place for it.
  const size_t needed = model.weight_bytes + kWorkBytes + kv_bytes;
  if (static_cast<double>(needed) > kShare * static_cast<double>(machine.free_host_bytes)) {
    return fmt::format("no: it needs {} of memory", format_bytes(static_cast<double>(needed)));
  }
  // Each token reads the weights once.
  return fmt::format("yes, on the CPU: at most {:.1f} tokens a second after a short prompt",
                     machine.read_bytes_per_second / static_cast<double>(model.weight_bytes));
}

}  // namespace

std::string verdict_on(const UsualModel& model, int64_t num_tokens, const VerdictMachine& machine) {
  const size_t kv_bytes = model.kv_bytes_per_token * static_cast<size_t>(num_tokens);
  // The order is that of --kv-offload auto: all on the GPU, else KV in host memory.
  if (machine.gpu_bytes == 0) return on_cpu(model, kv_bytes, machine);
  const double gpu_bytes = kShare * static_cast<double>(machine.gpu_bytes);
  const size_t least = model.weight_bytes + kWorkBytes;
  if (static_cast<double>(least + kv_bytes) <= gpu_bytes) return "yes";
  // Weights are never offloaded.
  if (static_cast<double>(least + kRingBytes) > gpu_bytes) {
    return fmt::format("no: its weights and work space take {} of the GPU's memory",
                       format_bytes(static_cast<double>(least + kRingBytes)));
  }
  const std::string kv_text = format_bytes(static_cast<double>(kv_bytes));
  if (kv_bytes > machine.free_host_bytes) {
    return fmt::format("no: {} of KV fit neither on the GPU nor in host memory", kv_text);
  }
  // Pinning would fail at the start; the remedy is one line of the shell.
  if (kv_bytes > machine.lockable_bytes) {
    return fmt::format("yes, KV in host memory, once {} may be locked (ulimit -l)", kv_text);
  }
  return "yes, KV in host memory";
}

}  // namespace sluice::cli
