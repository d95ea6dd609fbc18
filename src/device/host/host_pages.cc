// Maps host memory, and backs it by touching its pages on several threads.
#include "device/host/host_pages.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "core/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_memory.h"

namespace sluice {
namespace {

// Zeroing is bound by memory bandwidth, which a few cores reach.
constexpr int kMaxThreads = 16;
constexpr auto kReportInterval = std::chrono::milliseconds(50);
// Memory left to other programs, in addition to one piece for each thread.
constexpr size_t kReserveBytes = size_t{512} << 20;

size_t whole_huge_pages(size_t size) {
  return (size + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// One write per page makes the system back it with zeros.
void touch(std::byte* data, size_t num_bytes) {
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t offset = 0; offset < num_bytes; offset += page_bytes) {
    *const_cast<volatile std::byte*>(data + offset) = std::byte{0};
  }
}

// Distributes pieces to its threads; the calling thread waits and reports progress. All fields
// after mutex_ are protected by it.
class PageBacker {
 public:
  PageBacker(std::byte* data, size_t size_bytes, const BackPagesOptions& options, int num_threads)
      : data_(data),
        size_bytes_(size_bytes),
        options_(options),
        needed_bytes_(kReserveBytes + static_cast<size_t>(num_threads) * options.piece_bytes),
        num_running_(num_threads) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
  }

  // After an exception from on_progress too: no further piece begins, and begun ones are finished.
  ~PageBacker() {
    stop();
    for (std::thread& thread : threads_) thread.join();
  }
  PageBacker(const PageBacker&) = delete;
  PageBacker& operator=(const PageBacker&) = delete;

  // Returns whether all pieces were backed. Wakes every kReportInterval to report progress.
  bool wait(const AllocationProgress& on_progress) {
    std::unique_lock lock(mutex_);
    while (num_running_ > 0) {
      changed_.wait_for(lock, kReportInterval);
      report(lock, on_progress);
    }
    report(lock, on_progress);
    return done_bytes_ == size_bytes_;
  }

 private:
  // Calls on_progress without the lock, since it may be slow and may throw.
  void report(std::unique_lock<std::mutex>& lock, const AllocationProgress& on_progress) const {
    const size_t done_bytes = done_bytes_;
    lock.unlock();
    if (on_progress) on_progress(done_bytes, size_bytes_);
    lock.lock();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    next_offset_ = size_bytes_;
  }

  // A thread: takes pieces until none is left or the machine's memory is too low.
  void work() {
    std::unique_lock lock(mutex_);
    while (next_offset_ < size_bytes_) {
      const size_t offset = next_offset_;
      const size_t num_bytes = std::min(options_.piece_bytes, size_bytes_ - offset);
      next_offset_ += num_bytes;
      lock.unlock();
      const bool fits = options_.available_bytes() >= needed_bytes_;
      if (fits) touch(data_ + offset, num_bytes);
      lock.lock();
      if (fits) {
        done_bytes_ += num_bytes;
      } else {
        next_offset_ = size_bytes_;
      }
    }
    --num_running_;
    changed_.notify_one();
  }

  std::byte* const data_;
  const size_t size_bytes_;
  const BackPagesOptions& options_;
  const size_t needed_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_offset_ = 0;
  size_t done_bytes_ = 0;
  int num_running_;
  std::vector<std::thread> threads_;  // last: the threads use the fields above
};

}  // namespace

// mmap aligns to small pages only: this maps one huge page more and unmaps both ends.
std::byte* map_host_pages(size_t size_bytes) {
  if (size_bytes > SIZE_MAX - 2 * kHugePageBytes) return nullptr;
  const size_t kept_bytes = whole_huge_pages(size_bytes);
  void* mapped = mmap(nullptr, kept_bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t skip_bytes =
      whole_huge_pages(reinterpret_cast<size_t>(begin)) - reinterpret_cast<size_t>(begin);
  std::byte* data = begin + skip_bytes;
  if (skip_bytes > 0) munmap(begin, skip_bytes);
  if (skip_bytes < kHugePageBytes) munmap(data + kept_bytes, kHugePageBytes - skip_bytes);
  madvise(data, kept_bytes, MADV_HUGEPAGE);  // a hint: fewer TLB misses if granted
  return data;
}

void unmap_host_pages(std::byte* data, size_t size_bytes) noexcept {
  munmap(data, whole_huge_pages(size_bytes));
}

bool back_host_pages(std::byte* data, size_t size_bytes, const BackPagesOptions& options,
                     const AllocationProgress& on_progress) {
  SLUICE_CHECK(options.piece_bytes > 0);
  BackPagesOptions settled = options;
  if (!settled.available_bytes) settled.available_bytes = available_memory_bytes;
  const size_t num_pieces = (size_bytes + options.piece_bytes - 1) / options.piece_bytes;
  const int most = options.num_threads > 0 ? options.num_threads : num_usable_cores();
  const int num_threads =
      static_cast<int>(std::min<size_t>(num_pieces, std::min(most, kMaxThreads)));
  return PageBacker(data, size_bytes, settled, num_threads).wait(on_progress);
}

}  // namespace sluice
