// HostMemory: what memory this process may use, containers included.
//
// Used by CpuMemory and the CUDA device for their limits, and by the engine's plan. Docker and
// Kubernetes limit a control group (cgroup); a process beyond the limit is killed without an error,
// so the limit counts as the machine's memory. Thread rule: any thread; files are read at every
// call.
#pragma once

#include <cstddef>
#include <filesystem>

namespace sluice {

struct HostMemory {
  size_t total_bytes = 0;  // of the machine, or the lowest limit of the groups above the process
  size_t available_bytes = 0;  // of it, now: free, or page cache that can be dropped
  bool is_limited = false;     // by a group: what is beyond ends the process
};

// Reads /proc and /sys/fs/cgroup, version 1, 2 or both, below `root`. A file that is missing or
// makes no sense limits nothing: the physical memory is what remains.
HostMemory read_host_memory(const std::filesystem::path& root = "/");

}  // namespace sluice
