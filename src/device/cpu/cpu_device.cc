// Checks the options of a CPU device; makes its streams, events and memory.
#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include <sched.h>

#include "core/error.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/cpu_stream.h"

namespace sluice {
namespace {

// Resolves 0 to all usable cores. Errors: kInvalidArgument outside 0 to 1024.
int checked_num_threads(int num_threads) {
  constexpr int kMaxThreads = 1024;
  if (num_threads < 0 || num_threads > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument, "num_threads is {}; give 0 (all hardware threads) to {}",
         num_threads, kMaxThreads);
  }
  return num_threads == 0 ? num_usable_cores() : num_threads;
}

}  // namespace

// The affinity mask, not the number of cores: containers and taskset restrict it.
int num_usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

CpuDevice::CpuDevice(const DeviceOptions& options, std::unique_ptr<DeviceHook> hook)
    : options_(options),
      num_threads_(checked_num_threads(options.num_threads)),
      memory_(options.memory_limit_bytes),
      hook_(std::move(hook)),
      transfer_meter_(hook_ != nullptr && hook_->meters_transfers() ? hook_.get() : nullptr) {
  best_isa();  // reports a wrong SLUICE_CPU_ISA now, not in the first kernel
}

CpuDevice::~CpuDevice() {
  SLUICE_CHECK(num_streams_ == 0, "{} streams outlive their device", num_streams_);
  for (MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice}) {
    SLUICE_CHECK(memory_.allocated_bytes(kind) == 0, "{} bytes of {} memory outlive their device",
                 memory_.allocated_bytes(kind), memory_kind_name(kind));
  }
}

DeviceInfo CpuDevice::info() const {
  const size_t limit_bytes = memory_.limit_bytes(MemoryKind::kDevice);
  const size_t alive_bytes = memory_.allocated_bytes(MemoryKind::kDevice);
  return DeviceInfo{
      .name = fmt::format("{} ({})", cpu_brand_name(), cpu_isa_name(best_isa())),
      .total_memory_bytes = limit_bytes,
      .free_memory_bytes = std::min(available_memory_bytes(), limit_bytes - alive_bytes),
      .num_cores = num_usable_cores()};
}

std::unique_ptr<Stream> CpuDevice::make_stream(const StreamOptions& options) {
  StreamOptions settled = options;
  settled.num_threads =
      options.num_threads == 0 ? num_threads_ : checked_num_threads(options.num_threads);
  ++num_streams_made_;
  std::unique_ptr<StreamDelay> delay;
  if (hook_ != nullptr) delay = hook_->make_delay(options.name, num_streams_made_);
  auto stream = std::make_unique<CpuStream>(*this, settled, std::move(delay));
  ++num_streams_;
  return stream;
}

std::unique_ptr<Event> CpuDevice::make_event() { return std::make_unique<CpuEvent>(event_cells_); }

Buffer CpuDevice::allocate(size_t size_bytes, MemoryKind kind,
                           const AllocationProgress& on_progress) {
  if (size_bytes == 0) return Buffer();
  Buffer buffer(this, memory_.allocate(size_bytes, kind), size_bytes, kind);
  if (on_progress) on_progress(size_bytes, size_bytes);  // if it throws, the buffer is freed
  return buffer;
}

void CpuDevice::deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept {
  memory_.deallocate(data, size_bytes, kind);
}

}  // namespace sluice
