// Judges sizes with the engine's default share of the memory and round figures for all else.
#include "cli/doctor/verdict.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "cli/units.h"

namespace sluice::cli {
namespace {

constexpr double kShare = 0.9;  // gpu_memory_utilization
// Activations, the ring and the stage of offloaded KV: what `inspect` shows for models of 0.6B to
// 8B.
constexpr size_t kWorkBytes = size_t{3} << 29;
constexpr size_t kRingBytes = size_t{1} << 30;

// Through which experts in host memory stream.
constexpr size_t kExpertRingBytes = size_t{3} << 30;

// The numbers of sequences that a plan tries, from the default on.
constexpr size_t kSequences[] = {256, 64, 16, 4, 1};
// By default their states have a part of this many of the memory that they are in.
constexpr size_t kStateShare = 8;

size_t state_bytes(const UsualModel& model, size_t num_sequences, size_t memory_bytes) {
  if (model.state_bytes == 0) return 0;
  const size_t each = 2 * model.state_bytes;
  return each * std::clamp<size_t>(memory_bytes / kStateShare / each, 1, num_sequences);
}

std::string on_cpu(const UsualModel& model, size_t kv_bytes, const VerdictMachine& machine) {
  // KV of all tokens, since a CPU has no other place for it.
  const size_t needed = model.weight_bytes + kWorkBytes + kv_bytes + 2 * model.state_bytes;
  if (static_cast<double>(needed) > kShare * static_cast<double>(machine.free_host_bytes)) {
    return fmt::format("no: it needs {} of memory", format_bytes(static_cast<double>(needed)));
  }
  // Each token reads the weights once.
  const size_t read = model.active_bytes > 0 ? model.active_bytes : model.weight_bytes;
  return fmt::format("yes, on the CPU: at most {:.1f} tokens a second after a short prompt",
                     machine.read_bytes_per_second / static_cast<double>(read));
}

// Where KV goes beside these bytes on the GPU: "" there, "KV in host memory", or nothing if neither
// fits. The order is that of --kv-offload auto: all on the GPU, else KV in host memory, else
// fewer sequences.
std::optional<std::string> place_of_kv(const UsualModel& model, size_t bytes, size_t kv_bytes,
                                       const VerdictMachine& machine) {
  const double gpu_bytes = kShare * static_cast<double>(machine.gpu_bytes);
  for (const size_t num_sequences : kSequences) {
    const size_t least = bytes + state_bytes(model, num_sequences, machine.gpu_bytes);
    if (static_cast<double>(least + kv_bytes) <= gpu_bytes) return "";
    if (static_cast<double>(least + kRingBytes) <= gpu_bytes) return "KV in host memory";
  }
  return std::nullopt;
}

// "yes" with what is in host memory, or why that cannot be.
std::string with_host_bytes(const std::string& what, size_t host_bytes,
                            const VerdictMachine& machine) {
  if (what.empty()) return "yes";
  const std::string size = format_bytes(static_cast<double>(host_bytes));
  if (host_bytes > machine.free_host_bytes) {
    return fmt::format("no: {} of {} fit neither on the GPU nor in host memory", size,
                       what.substr(0, what.find(" in ")));
  }
  // Pinning would fail at the start; the remedy is one line of the shell.
  if (host_bytes > machine.lockable_bytes) {
    return fmt::format("yes, {}, once {} may be locked (ulimit -l)", what, size);
  }
  return "yes, " + what;
}

}  // namespace

std::string verdict_on(const UsualModel& model, int64_t num_tokens, const VerdictMachine& machine) {
  const size_t kv_bytes = model.kv_bytes_per_token * static_cast<size_t>(num_tokens);
  if (machine.gpu_bytes == 0) return on_cpu(model, kv_bytes, machine);
  const size_t least = model.weight_bytes + kWorkBytes;
  if (const auto place = place_of_kv(model, least, kv_bytes, machine)) {
    return with_host_bytes(*place, kv_bytes, machine);
  }
  const size_t without_experts = least - model.expert_bytes + kExpertRingBytes;
  if (model.expert_bytes > 0) {
    if (const auto place = place_of_kv(model, without_experts, kv_bytes, machine)) {
      const std::string what = place->empty() ? "experts in host memory" : "experts and " + *place;
      return with_host_bytes(what, model.expert_bytes + (place->empty() ? 0 : kv_bytes), machine);
    }
  }
  const size_t needed = (model.expert_bytes > 0 ? without_experts : least) + kRingBytes +
                        state_bytes(model, 1, machine.gpu_bytes);
  return fmt::format("no: its weights and work space take {} of the GPU's memory",
                     format_bytes(static_cast<double>(needed)));
}

}  // namespace sluice::cli
