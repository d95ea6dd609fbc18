// HostMemory: how much host memory this process may use, also in a container.
//
// Used by CpuMemory and the CUDA device for their limits, and by the engine's plan. Docker and
// Kubernetes set the limit of a control group (cgroup); a process that exceeds it is killed without
// an error, so the limit counts as the machine's memory. Thread rule: any thread; files are read at
// every call.
#pragma once

#include <cstddef>
#include <filesystem>

namespace sluice {

struct HostMemory {
  size_t total_bytes = 0;  // of the machine, or the lowest limit of the groups above the process
  size_t available_bytes = 0;  // of it, at the time of the call: free memory and page cache
  bool is_limited = false;     // by a control group; exceeding it ends the process
};

// Reads /proc and /sys/fs/cgroup, version 1, 2 or both, below `root` (tests give a directory of
// their own). A missing or unreadable file sets no limit.
HostMemory read_host_memory(const std::filesystem::path& root = "/");

}  // namespace sluice
