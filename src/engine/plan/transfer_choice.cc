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

}  // namespace sluice
