// Selects the threshold between copies and kernel, and describes it in a note.
#include "engine/plan/transfer_choice.h"

#include <optional>

#include <fmt/format.h>

#include "engine/plan/machine_profile.h"

namespace sluice {
namespace {

// Copies of scattered runs reach 93 % of a kernel's rate at 1 MiB and 100 % at 2 MiB (H200), and
// they leave the multiprocessors free.
constexpr size_t kDefaultCopyRunBytes = size_t{2} << 20;

std::string run_text(size_t num_bytes) {
  const double kib = static_cast<double>(num_bytes) / 1024;
  return kib < 1024 ? fmt::format("{:.0f} KiB", kib) : fmt::format("{:.1f} MiB", kib / 1024);
}

// The note on the choice; `why` names its source.
std::string describe(size_t copy_run_bytes, const std::string& why) {
  if (copy_run_bytes == 0) return fmt::format("transfers: copies ({})", why);
  return fmt::format("transfers: copies for runs of {} and more, a kernel below ({})",
                     run_text(copy_run_bytes), why);
}

}  // namespace

TransferChoice choose_transfers(const EngineOptions& options, const Device& device) {
  TransferChoice choice;
  std::optional<MachineProfile> profile;
  std::string trouble;
  if (device.kind() != DeviceKind::kCpu) {
    profile = read_machine_profile(machine_profile_path(), gpu_id(options.device), &trouble);
    if (profile) choice.link_bytes_per_second = profile->to_device_bytes_per_second;
  }
  if (options.kv.copy_bytes) {
    choice.copy_run_bytes = *options.kv.copy_bytes;
    choice.notes = {describe(choice.copy_run_bytes, "kv_copy_bytes")};
    return choice;
  }
  if (device.kind() == DeviceKind::kCpu) return choice;
  if (!trouble.empty()) choice.notes.push_back(trouble);
  choice.copy_run_bytes = profile ? profile->copy_run_bytes : kDefaultCopyRunBytes;
  choice.notes.push_back(describe(choice.copy_run_bytes,
                                  profile ? "measured by sluice doctor on " + profile->measured_on
                                          : "default; run `sluice doctor` to measure"));
  return choice;
}

// Slots much smaller than the default's make very many small transfers, each with its own events.
void warn_of_tiny_slots(const PlanTraits& traits, EnginePlan& plan) {
  constexpr int32_t kSensibleShare = 8;
  const int32_t usual = traits.slot_tokens;
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  const int32_t slot_blocks = plan.offloaded.sizes.slot_blocks;
  const int32_t slot_tokens = slot_blocks * block_tokens;
  const bool is_whole_sequence = slot_blocks >= plan.passes.limits.max_blocks_per_seq;
  if (slot_tokens >= usual / kSensibleShare || is_whole_sequence) return;
  plan.memory.warnings.push_back(fmt::format(
      "slots of {} tokens (kv_slot_blocks {}, block_size {}) make very many small transfers; "
      "--kv-slot-blocks {} makes slots of the usual {} tokens",
      slot_tokens, slot_blocks, block_tokens, usual / block_tokens, usual));
}

// Options of offloaded KV that were given in vain, since `auto` found room on the device. A warning
// and no error: the same line has to start where memory is short.
void warn_of_unused_offload(const EngineOptions& options, bool is_offloaded,
                            std::vector<std::string>& warnings) {
  if (options.kv.offload != KvOffload::kAuto || is_offloaded) return;
  std::string names;
  for (const auto& row : kKvOffloadRows) {
    if (row.facts.name == "kv_offload" || row.get(options.kv) == row.get({})) continue;
    names += (names.empty() ? "" : ", ") + std::string(row.facts.name);
  }
  if (names.empty()) return;
  warnings.push_back(
      fmt::format("{}: no effect, since all KV fits on the device and --kv-offload auto left it "
                  "there; --kv-offload chunked or layerwise uses it",
                  names));
}

}  // namespace sluice
