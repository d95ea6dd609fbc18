// Allocates the three kinds of memory; composes the error when one does not fit.
#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "device/cpu/cpu_memory.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_pinning.h"
#include "device/debug_fill.h"

namespace sluice {
namespace {

constexpr size_t kAlignment = 256;

std::string mib(size_t num_bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(num_bytes) / (1 << 20));
}

// For debug builds. On a stream of its own, since the default stream is not used (invariant 1).
void fill_with_nan(std::byte* data, size_t num_bytes) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check_cuda(cudaMemsetAsync(data, kNanByte, num_bytes, stream), "cudaMemsetAsync");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

// Whether pin_host_memory allocates it; deallocate() decides by the same rule.
bool is_large_pinned(size_t size_bytes, MemoryKind kind) {
  return kind == MemoryKind::kPinned && size_bytes >= kLargePinnedBytes;
}

}  // namespace

std::byte* CudaMemory::allocate(size_t size_bytes, MemoryKind kind,
                                const AllocationProgress& on_progress) {
  // Not under the lock: it takes seconds, and on_progress may read the counters.
  const bool fits_machine = size_bytes <= machine_memory_bytes();
  std::byte* pinned = nullptr;
  if (is_large_pinned(size_bytes, kind) && fits_machine) {
    pinned = pin_host_memory(size_bytes, on_progress);
  }
  const std::lock_guard lock(mutex_);
  std::byte* data = pinned != nullptr ? pinned : take(size_bytes, kind);
  if (data == nullptr) fail_to_fit(size_bytes, kind);
  Usage& used = usage(kind);
  used.alive_bytes += size_bytes;
  used.peak_bytes = std::max(used.peak_bytes, used.alive_bytes);
  ++num_allocations_;
  if (kind != MemoryKind::kHost) ranges_.emplace(data, Range{size_bytes, kind});
  if (kDebugFill && kind == MemoryKind::kDevice) fill_with_nan(data, size_bytes);
  return data;
}

// Allocates without counting; null if the memory does not suffice.
std::byte* CudaMemory::take(size_t size_bytes, MemoryKind kind) const {
  // Linux would grant more than the machine has and later kill a process.
  if (kind != MemoryKind::kDevice && size_bytes > machine_memory_bytes()) return nullptr;
  if (kind == MemoryKind::kHost) {
    const size_t rounded = (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  }
  void* data = nullptr;
  cudaError_t status = cudaSuccess;
  if (kind == MemoryKind::kPinned) {
    status = cudaHostAlloc(&data, size_bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  } else {
    // The limit is this process's own; cudaMalloc knows only the GPU's.
    const size_t alive_bytes = usage(kind).alive_bytes;
    if (device_limit_bytes_ != 0 && size_bytes > device_limit_bytes_ - alive_bytes) return nullptr;
    status = cudaMalloc(&data, size_bytes);
  }
  if (status == cudaErrorMemoryAllocation || status == cudaErrorInvalidValue) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, kind == MemoryKind::kPinned ? "cudaHostAlloc" : "cudaMalloc");
  return static_cast<std::byte*>(data);
}

// Throws the error for an allocation that does not fit, with what is left of its kind.
void CudaMemory::fail_to_fit(size_t size_bytes, MemoryKind kind) const {
  if (kind != MemoryKind::kDevice) {
    fail(ErrorCode::kDoesNotFit,
         "{} of {} memory do not fit: {} are left, {} of this kind are in use; ask for less{}",
         mib(size_bytes), memory_kind_name(kind), mib(available_memory_bytes()),
         mib(usage(kind).alive_bytes),
         kind == MemoryKind::kPinned ? ", or raise the limit of lockable memory (ulimit -l)" : "");
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (device_limit_bytes_ != 0) {
    total_bytes = std::min(total_bytes, device_limit_bytes_);
    free_bytes = std::min(free_bytes, device_limit_bytes_ - usage(kind).alive_bytes);
  }
  fail(ErrorCode::kDoesNotFit,
       "{} of device memory do not fit: {} of {} are left; ask for less, or end other programs "
       "that use this GPU",
       mib(size_bytes), mib(free_bytes), mib(total_bytes));
}

void CudaMemory::deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept {
  const std::lock_guard lock(mutex_);
  usage(kind).alive_bytes -= size_bytes;
  if (kind == MemoryKind::kHost) {
    std::free(data);
    return;
  }
  ranges_.erase(data);
  // Errors are ignored: after a lost context every call fails, and the driver frees the memory.
  if (is_large_pinned(size_bytes, kind)) {
    unpin_host_memory(data, size_bytes);
  } else if (kind == MemoryKind::kPinned) {
    cudaFreeHost(data);
  } else {
    cudaFree(data);
  }
  cudaGetLastError();
}

MemoryKind CudaMemory::kind_at(const std::byte* data, size_t num_bytes) const {
  const std::lock_guard lock(mutex_);
  auto found = ranges_.upper_bound(data);
  if (found == ranges_.begin()) return MemoryKind::kHost;
  --found;
  const Range& range = found->second;
  const size_t offset_bytes = static_cast<size_t>(data - found->first);
  if (offset_bytes >= range.size_bytes) return MemoryKind::kHost;
  SLUICE_CHECK(num_bytes <= range.size_bytes - offset_bytes,
               "{} bytes at offset {} run past the end of a {} buffer of {}", num_bytes,
               offset_bytes, memory_kind_name(range.kind), range.size_bytes);
  return range.kind;
}

int64_t CudaMemory::num_allocations() const {
  const std::lock_guard lock(mutex_);
  return num_allocations_;
}

size_t CudaMemory::allocated_bytes(MemoryKind kind) const {
  const std::lock_guard lock(mutex_);
  return usage(kind).alive_bytes;
}

size_t CudaMemory::peak_bytes(MemoryKind kind) const {
  const std::lock_guard lock(mutex_);
  return usage(kind).peak_bytes;
}

}  // namespace sluice
