// Walks the control groups from the process's own up to the root.
//
// In a container /proc/self/cgroup may give the host's path of the group, while /sys/fs/cgroup
// shows the container's own group as its root: directories that do not exist are skipped, and the
// root is always read.
#include "device/host/host_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace sluice {
namespace {

namespace fs = std::filesystem;

// The names of one cgroup version's files.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_cache;  // keys of memory.stat: page cache of the group and those below it
  const char* active_cache;
};
constexpr GroupFiles kVersion1 = {.limit = "memory.limit_in_bytes",
                                  .usage = "memory.usage_in_bytes",
                                  .inactive_cache = "total_inactive_file",
                                  .active_cache = "total_active_file"};
constexpr GroupFiles kVersion2 = {.limit = "memory.max",
                                  .usage = "memory.current",
                                  .inactive_cache = "inactive_file",
                                  .active_cache = "active_file"};

// The number in a file; empty for "max" and for a file that does not exist.
std::optional<size_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return static_cast<size_t>(value);
}

// The number after `key` in a file of lines "key number"; 0 if there is none.
size_t read_keyed(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t space = line.find_first_of(" \t");
    if (space == std::string::npos || line.substr(0, space) != key) continue;
    uint64_t value = 0;
    if (std::sscanf(line.c_str() + space, "%lu", &value) == 1) return static_cast<size_t>(value);
  }
  return 0;
}

// Visits the control groups of a process and keeps the lowest limit and the least available memory.
class GroupWalk {
 public:
  GroupWalk(fs::path mounts, HostMemory physical)
      : mounts_(std::move(mounts)), physical_bytes_(physical.total_bytes), memory_(physical) {}

  // A line of /proc/self/cgroup: "4:memory:/a/b" (version 1) or "0::/a/b" (version 2).
  void visit_line(std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string controllers =
        "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,") {
      visit_up_from(mounts_, group, kVersion2);
      visit_up_from(mounts_ / "unified", group, kVersion2);  // beside version 1
    } else if (controllers.find(",memory,") != std::string::npos) {
      visit_up_from(mounts_ / "memory", group, kVersion1);
    }
  }

  HostMemory memory() const { return memory_; }

 private:
  // Visits the group, its parents and the root of the mount. ".." at the front means a group
  // outside of the container's view.
  void visit_up_from(const fs::path& mount, fs::path group, const GroupFiles& files) {
    group = group.relative_path().lexically_normal();
    while (!group.empty() && group != "." && *group.begin() != "..") {
      visit(mount / group, files);
      group = group.parent_path();
    }
    visit(mount, files);
  }

  // Page cache counts as available: the kernel drops it before it ends a process.
  void visit(const fs::path& group, const GroupFiles& files) {
    const std::optional<size_t> limit = read_number(group / files.limit);
    if (!limit || *limit >= physical_bytes_) return;  // version 1 writes a huge number for "none"
    const size_t usage = read_number(group / files.usage).value_or(0);
    const size_t cache = read_keyed(group / "memory.stat", files.inactive_cache) +
                         read_keyed(group / "memory.stat", files.active_cache);
    const size_t held = usage - std::min(usage, cache);
    memory_.is_limited = true;
    memory_.total_bytes = std::min(memory_.total_bytes, *limit);
    memory_.available_bytes = std::min(memory_.available_bytes, *limit - std::min(*limit, held));
  }

  fs::path mounts_;
  size_t physical_bytes_;
  HostMemory memory_;
};

// Memory of the machine without control groups; sysconf where /proc/meminfo cannot be read.
HostMemory physical_memory(const fs::path& root) {
  constexpr size_t kKib = 1024;
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  HostMemory memory;
  memory.total_bytes = read_keyed(root / "proc/meminfo", "MemTotal:") * kKib;
  if (memory.total_bytes == 0) {
    memory.total_bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes;
  }
  memory.available_bytes = read_keyed(root / "proc/meminfo", "MemAvailable:") * kKib;
  if (memory.available_bytes == 0) {
    memory.available_bytes = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page_bytes;
  }
  return memory;
}

}  // namespace

HostMemory read_host_memory(const std::filesystem::path& root) {
  GroupWalk walk(root / "sys/fs/cgroup", physical_memory(root));
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) walk.visit_line(line);
  HostMemory memory = walk.memory();
  memory.available_bytes = std::min(memory.available_bytes, memory.total_bytes);
  return memory;
}

}  // namespace sluice
