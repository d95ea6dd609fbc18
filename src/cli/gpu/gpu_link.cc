// Measures large copies, scattered runs and one large pinned allocation, and stores the results.
#include "cli/gpu/gpu_link.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "cli/bench/run_lengths.h"
#include "core/error.h"
#include "device/cpu/cpu_memory.h"
#include "engine/plan/machine_profile.h"

namespace sluice::cli {
namespace {

constexpr const char* kGpu = "cuda";
constexpr int32_t kCopyRepeats = 5;  // of each measurement; medians are kept
// Enough for a stable rate; at most an eighth of the available memory is pinned.
constexpr size_t kMostPinnedBytes = size_t{4} << 30;

// Bytes per second of one pinned allocation.
double measure_pinning(Device& device) {
  const size_t num_bytes = std::min(kMostPinnedBytes, available_memory_bytes() / 8);
  const auto start = std::chrono::steady_clock::now();
  const Buffer pinned = device.allocate(num_bytes, MemoryKind::kPinned);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  return static_cast<double>(num_bytes) / taken.count();
}

// "2026-11-21".
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char text[sizeof("2026-11-21")];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &local);
  return text;
}

// Writes the profile file, or sets why_not_kept: doctor's findings are shown in either case.
void keep(LinkFindings* findings) {
  const std::filesystem::path path = machine_profile_path();
  if (path.empty()) {
    findings->why_not_kept = "neither XDG_CACHE_HOME nor HOME names a folder";
    return;
  }
  try {
    write_machine_profile(path, gpu_id(kGpu),
                          {.measured_on = today(),
                           .copy_run_bytes = findings->copy_run_bytes,
                           .to_device_bytes_per_second = findings->link.to_device.median,
                           .to_host_bytes_per_second = findings->link.to_host.median,
                           .both_bytes_per_second = findings->link.both.median,
                           .pinning_bytes_per_second = findings->pinning_bytes_per_second});
    findings->kept_in = path.string();
  } catch (const Error& error) {
    findings->why_not_kept = error.what();
  }
}

}  // namespace

LinkFindings measure_gpu_link() {
  const auto device = make_device(kGpu);
  LinkFindings findings;
  findings.pinning_bytes_per_second = measure_pinning(*device);
  // The pinned test allocation is freed by now, so both never exist together.
  const LinkMemory memory(*device, link_bytes(*device));
  const auto up = device->make_stream({.name = "to the device"});
  const auto down = device->make_stream({.name = "to the host"});
  findings.link = measure_link(memory, *up, *down, kCopyRepeats);
  findings.copy_run_bytes = choose_copy_run_bytes(measure_run_lengths(
      {.device = *device, .memory = memory, .up = *up, .down = *down, .repeats = kCopyRepeats}));
  keep(&findings);
  return findings;
}

}  // namespace sluice::cli
