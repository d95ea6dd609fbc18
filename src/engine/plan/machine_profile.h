// MachineProfile: what `sluice doctor` measured of a GPU's link, kept in a file for later runs.
//
// Written by cli/doctor; read by engine/plan/transfer_choice if KV is offloaded. The file is a
// cache and may be deleted at any time. Thread rule: free functions, no state.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace sluice {

// One GPU's measurements. Rates are bytes per second.
struct MachineProfile {
  std::string measured_on;    // a date: "2026-11-21"
  size_t copy_run_bytes = 0;  // shortest run for which copies are as fast as a kernel
  double to_device_bytes_per_second = 0;
  double to_host_bytes_per_second = 0;
  double both_bytes_per_second = 0;     // both directions at once, their sum
  double pinning_bytes_per_second = 0;  // allocating pinned host memory
};

// sluice/machine.json in $XDG_CACHE_HOME or ~/.cache; empty if the environment has neither.
std::filesystem::path machine_profile_path();

// The profile of one GPU; empty if there is no file or no entry for it. A file that is broken or of
// another version counts as absent, and `note` becomes a sentence that says so.
std::optional<MachineProfile> read_machine_profile(const std::filesystem::path& path,
                                                   const std::string& gpu_id, std::string* note);

// Adds or replaces the GPU's entry and keeps those of other GPUs; makes the folder. The file is
// replaced atomically. Errors: kIo.
void write_machine_profile(const std::filesystem::path& path, const std::string& gpu_id,
                           const MachineProfile& profile);

}  // namespace sluice
