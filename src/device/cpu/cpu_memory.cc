// Small allocations come from the heap, where AddressSanitizer guards their ends. Large ones are
// mapped and backed as they are touched, so that planned but unused memory costs nothing.
#include "device/cpu/cpu_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/error.h"
#include "device/debug_fill.h"
#include "device/host/host_memory.h"
#include "device/host/host_pages.h"

namespace sluice {
namespace {

size_t round_up(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// "512 bytes" or "3.5 MiB", for error texts.
std::string format_bytes(size_t num_bytes) {
  constexpr double kMiB = 1 << 20;
  if (num_bytes < (size_t{1} << 20)) return fmt::format("{} bytes", num_bytes);
  return fmt::format("{:.1f} MiB", static_cast<double>(num_bytes) / kMiB);
}

}  // namespace

CpuMemory::CpuMemory(size_t device_limit_bytes) {
  for (Usage& usage : usage_) usage.limit_bytes = machine_memory_bytes();
  if (device_limit_bytes != 0) usage(MemoryKind::kDevice).limit_bytes = device_limit_bytes;
}

std::byte* CpuMemory::allocate(size_t size_bytes, MemoryKind kind) {
  const std::lock_guard lock(mutex_);
  Usage& used = usage(kind);
  const size_t left_bytes = used.limit_bytes - used.alive_bytes;
  std::byte* data = size_bytes <= left_bytes ? take_from_system(size_bytes) : nullptr;
  if (data == nullptr) {
    fail(ErrorCode::kDoesNotFit,
         "{} of {} memory do not fit: {} of {} are left; ask for less, or raise the memory limit",
         format_bytes(size_bytes), memory_kind_name(kind), format_bytes(left_bytes),
         format_bytes(used.limit_bytes));
  }
  used.alive_bytes += size_bytes;
  used.peak_bytes = std::max(used.peak_bytes, used.alive_bytes);
  ++num_allocations_;
  if (kind == MemoryKind::kDevice) {
    device_ranges_.emplace(data, size_bytes);
    if (kDebugFill) std::memset(data, kNanByte, size_bytes);
  }
  return data;
}

void CpuMemory::deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept {
  const std::lock_guard lock(mutex_);
  usage(kind).alive_bytes -= size_bytes;
  if (kind == MemoryKind::kDevice) device_ranges_.erase(data);
  if (size_bytes >= kHugePageBytes) {
    unmap_host_pages(data, size_bytes);
  } else {
    std::free(data);
  }
}

bool CpuMemory::is_device(const std::byte* data, size_t num_bytes) const {
  const std::lock_guard lock(mutex_);
  // The last range that begins at or before `data` is the only one that can contain it.
  auto range = device_ranges_.upper_bound(data);
  if (range == device_ranges_.begin()) return false;
  --range;
  const auto [begin, size_bytes] = *range;
  const size_t offset_bytes = static_cast<size_t>(data - begin);
  if (offset_bytes >= size_bytes) return false;
  SLUICE_CHECK(num_bytes <= size_bytes - offset_bytes,
               "{} bytes at offset {} run past the end of a device buffer of {}", num_bytes,
               offset_bytes, size_bytes);
  return true;
}

int64_t CpuMemory::num_allocations() const {
  const std::lock_guard lock(mutex_);
  return num_allocations_;
}

size_t CpuMemory::allocated_bytes(MemoryKind kind) const {
  const std::lock_guard lock(mutex_);
  return usage(kind).alive_bytes;
}

size_t CpuMemory::peak_bytes(MemoryKind kind) const {
  const std::lock_guard lock(mutex_);
  return usage(kind).peak_bytes;
}

size_t CpuMemory::limit_bytes(MemoryKind kind) const { return usage(kind).limit_bytes; }

// Null if the system has not enough memory. deallocate() frees by the same size threshold.
std::byte* CpuMemory::take_from_system(size_t size_bytes) {
  if (size_bytes >= kHugePageBytes) return map_host_pages(size_bytes);
  return static_cast<std::byte*>(std::aligned_alloc(kAlignment, round_up(size_bytes, kAlignment)));
}

size_t machine_memory_bytes() { return read_host_memory().total_bytes; }

size_t available_memory_bytes() { return read_host_memory().available_bytes; }

}  // namespace sluice
