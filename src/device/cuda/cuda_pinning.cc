// Maps, backs and registers memory, and undoes it in reverse order.
#include "device/cuda/cuda_pinning.h"

#include <memory>
#include <string>

#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include "core/error.h"
#include "device/cpu/cpu_memory.h"
#include "device/cuda/cuda_check.h"
#include "device/host/host_pages.h"

namespace sluice {
namespace {

std::string gib(size_t num_bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(num_bytes) / (1 << 30));
}

// The process's limit of locked memory, for the error text of a failed registration.
std::string lock_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return gib(limit.rlim_cur);
}

// Throws the error for memory that ran out after `done_bytes` were backed.
[[noreturn]] void fail_to_back(size_t size_bytes, size_t done_bytes) {
  fail(ErrorCode::kDoesNotFit,
       "{} of pinned memory do not fit: with {} of them taken, {} of the machine's memory were "
       "left; ask for less, or end other programs",
       gib(size_bytes), gib(done_bytes), gib(available_memory_bytes()));
}

}  // namespace

std::byte* pin_host_memory(size_t size_bytes, const AllocationProgress& on_progress) {
  // Unmaps the pages on every error below.
  const auto unmap = [size_bytes](std::byte* data) { unmap_host_pages(data, size_bytes); };
  std::unique_ptr<std::byte, decltype(unmap)> pages(map_host_pages(size_bytes), unmap);
  if (pages == nullptr) fail_to_back(size_bytes, 0);
  size_t done_bytes = 0;
  const auto remember = [&](size_t done, size_t total) {
    done_bytes = done;
    if (on_progress) on_progress(done, total);
  };
  if (!back_host_pages(pages.get(), size_bytes, {}, remember)) {
    fail_to_back(size_bytes, done_bytes);
  }
  const cudaError_t status =
      cudaHostRegister(pages.get(), size_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail(ErrorCode::kDoesNotFit,
         "{} of memory cannot be pinned: cudaHostRegister: {}; {} are left beside them, and the "
         "limit of lockable memory (ulimit -l) is {}; raise it or ask for less",
         gib(size_bytes), cuda_error_text(status), gib(available_memory_bytes()), lock_limit());
  }
  return pages.release();
}

void unpin_host_memory(std::byte* data, size_t size_bytes) noexcept {
  cudaHostUnregister(data);
  unmap_host_pages(data, size_bytes);
}

}  // namespace sluice
