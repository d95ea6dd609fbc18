// MachineProfile: what `sluice doctor` has measured of a GPU's link, kept in a file for later runs.
//
// cli/doctor writes it; engine/plan/transfer_choice reads it when KV is offloaded. The file is a
// cache: it may go at any time. Thread rule: free functions, no state.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace sluice {

struct MachineProfile {
  std::string measured_on;    // "2026-11-21"
  size_t copy_run_bytes = 0;  // from runs of this length on, copies are as good as a kernel
  double to_device_bytes_per_second = 0;
  double to_host_bytes_per_second = 0;
  double both_bytes_per_second = 0;  // at once, their sum
  double pinning_bytes_per_second = 0;
};

// sluice/machine.json in $XDG_CACHE_HOME or ~/.cache; empty when the environment names neither.
std::filesystem::path machine_profile_path();

// What the file says about this GPU; nothing when there is no file or it does not know the GPU.
// A file that is broken or of another version is as good as none: `note` says so in a sentence.
std::optional<MachineProfile> read_machine_profile(const std::filesystem::path& path,
                                                   const std::string& gpu_id, std::string* note);

// Puts it into the file, all or nothing, beside what it says of other GPUs; makes the folder.
// Errors: kIo.
void write_machine_profile(const std::filesystem::path& path, const std::string& gpu_id,
                           const MachineProfile& profile);

}  // namespace sluice
