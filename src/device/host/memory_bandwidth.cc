// Reads a large buffer several times and keeps the fastest pass.
#include "device/host/memory_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "device/cpu/cpu_memory.h"
#include "device/host/thread_team.h"

namespace sluice {
namespace {

constexpr size_t kBufferBytes = size_t{512} << 20;
constexpr size_t kLineBytes = 64;
constexpr size_t kNumStreams = 4;  // per thread, as the matrix product reads weights
constexpr size_t kRunBytes = 4 * kLineBytes;
constexpr int kNumPasses = 7;

// Reads one word of each cache line, which transfers the whole line and needs little of the core.
// Reading several streams in turn, a few lines of each, keeps more lines in flight than one stream,
// so that memory is the bound. Returns a sum, so that the loads are not removed.
uint64_t read_lines(const std::byte* data, size_t num_bytes) {
  const size_t stream_bytes = num_bytes / kNumStreams / kRunBytes * kRunBytes;
  uint64_t sums[kNumStreams] = {};
  for (size_t offset = 0; offset < stream_bytes; offset += kRunBytes) {
    for (size_t i = 0; i < kNumStreams; ++i) {
      for (size_t line = 0; line < kRunBytes; line += kLineBytes) {
        uint64_t word;
        std::memcpy(&word, data + i * stream_bytes + offset + line, sizeof(word));
        sums[i] += word;
      }
    }
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double measure_dram_read_bytes_per_second(int num_threads) {
  CpuMemory memory(0);
  std::byte* const data = memory.allocate(kBufferBytes, MemoryKind::kHost);
  ThreadTeam team(num_threads, "dram_read");
  const auto share = [&](int64_t index) {  // where one of num_threads equal parts begins
    return kBufferBytes / kLineBytes * static_cast<size_t>(index) /
           static_cast<size_t>(num_threads) * kLineBytes;
  };
  team.parallel_for(num_threads, [&](int64_t index) {
    std::memset(data + share(index), 1, share(index + 1) - share(index));
  });
  double best_seconds = 1e30;
  volatile uint64_t sink = 0;  // so that the loads are not removed
  for (int pass = 0; pass < kNumPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    team.parallel_for(num_threads, [&](int64_t index) {
      const uint64_t sum = read_lines(data + share(index), share(index + 1) - share(index));
      if (sum == 0) sink = sum;  // never: the buffer holds ones
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best_seconds = std::min(best_seconds, elapsed.count());
  }
  memory.deallocate(data, kBufferBytes, MemoryKind::kHost);
  return static_cast<double>(kBufferBytes) / best_seconds;
}

}  // namespace sluice
