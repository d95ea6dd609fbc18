// HostMemory, read from directories that imitate /proc and /sys/fs/cgroup of real machines: each
// cgroup version, nested limits, and paths seen from inside a container.
#include "device/host/host_memory.h"

#include <gtest/gtest.h>

#include "io/temp_dir.h"

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// A machine of 16 GiB, 12 of them available.
class HostMemoryTest : public ::testing::Test {
 protected:
  HostMemoryTest() {
    put("proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"
        "MemAvailable:   12582912 kB\n");
  }
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_.path() / name).parent_path());
    root_.write(name, text);
  }
  HostMemory read() const { return read_host_memory(root_.path()); }

  TempDir root_;
};

TEST_F(HostMemoryTest, WithoutGroupsIsTheMachines) {
  for (const char* groups : {"", "0::/\n", "0::/user.slice\n4:memory:/\n", "nonsense\n:\n::\n"}) {
    put("proc/self/cgroup", groups);
    EXPECT_EQ(read().total_bytes, 16384 * kMiB) << groups;
    EXPECT_EQ(read().available_bytes, 12288 * kMiB) << groups;
    EXPECT_FALSE(read().is_limited) << groups;
  }
}

// The kernel can drop the group's page cache, so it does not count as used.
TEST_F(HostMemoryTest, Version2LimitsAndCountsWhatIsUsed) {
  put("proc/self/cgroup", "0::/pod/container\n");
  put("sys/fs/cgroup/pod/container/memory.max", "209715200\n");
  put("sys/fs/cgroup/pod/container/memory.current", "104857600\n");
  put("sys/fs/cgroup/pod/container/memory.stat",
      "anon 52428800\nfile 52428800\ninactive_file 20971520\nactive_file 31457280\n");
  EXPECT_EQ(read().total_bytes, 200 * kMiB);
  EXPECT_EQ(read().available_bytes, 150 * kMiB);
  EXPECT_TRUE(read().is_limited);
}

TEST_F(HostMemoryTest, TheLowestLimitOfTheHierarchyCounts) {
  put("proc/self/cgroup", "0::/pod/container\n");
  put("sys/fs/cgroup/pod/container/memory.max", "max\n");
  put("sys/fs/cgroup/pod/memory.max", "314572800\n");
  put("sys/fs/cgroup/pod/memory.current", "1048576\n");
  EXPECT_EQ(read().total_bytes, 300 * kMiB);
  EXPECT_EQ(read().available_bytes, 299 * kMiB);
  put("sys/fs/cgroup/pod/container/memory.max", "104857600\n");
  EXPECT_EQ(read().total_bytes, 100 * kMiB);
  EXPECT_EQ(read().available_bytes, 100 * kMiB);
}

// A sibling group may have used the memory that the parent's limit leaves.
TEST_F(HostMemoryTest, WhatIsAvailableIsTheLeastOfTheHierarchy) {
  put("proc/self/cgroup", "0::/pod/container\n");
  put("sys/fs/cgroup/pod/memory.max", "314572800\n");
  put("sys/fs/cgroup/pod/memory.current", "262144000\n");
  put("sys/fs/cgroup/pod/container/memory.max", "209715200\n");
  EXPECT_EQ(read().total_bytes, 200 * kMiB);
  EXPECT_EQ(read().available_bytes, 50 * kMiB);
}

TEST_F(HostMemoryTest, Version1LimitsInItsOwnHierarchy) {
  put("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/1d2e\n3:cpuset:/\n0::/\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/docker/1d2e/memory.limit_in_bytes", "209715200\n");
  put("sys/fs/cgroup/memory/docker/1d2e/memory.usage_in_bytes", "62914560\n");
  put("sys/fs/cgroup/memory/docker/1d2e/memory.stat",
      "cache 1\ninactive_file 5\ntotal_inactive_file 10485760\ntotal_active_file 0\n");
  EXPECT_EQ(read().total_bytes, 200 * kMiB);
  EXPECT_EQ(read().available_bytes, 150 * kMiB);
}

// As in Docker: the path is the host's, but the mount shows the container's group as its root.
TEST_F(HostMemoryTest, ThePathOfTheHostIsNotThere) {
  put("proc/self/cgroup", "4:memory:/docker/1d2e\n0::/docker/1d2e\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n");
  EXPECT_EQ(read().total_bytes, 200 * kMiB);
  put("sys/fs/cgroup/memory.max", "104857600\n");
  EXPECT_EQ(read().total_bytes, 100 * kMiB);
  put("proc/self/cgroup", "0::/../../other\n");  // a cgroup namespace above the mount
  EXPECT_EQ(read().total_bytes, 100 * kMiB);
}

TEST_F(HostMemoryTest, ThisMachineHasMemory) {
  const HostMemory memory = read_host_memory();
  EXPECT_GT(memory.total_bytes, 16 * kMiB);
  EXPECT_GT(memory.available_bytes, 0u);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
}

}  // namespace
}  // namespace sluice
