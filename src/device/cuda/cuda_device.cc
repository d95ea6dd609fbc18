// Makes CudaDevice and its parts; implements cuda_door.h.
#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cuda/code_version.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_door.h"
#include "device/cuda/cuda_event.h"
#include "device/cuda/cuda_stream.h"

namespace sluice {
namespace {

// Each report word has its own cache line, so that streams do not share one.
constexpr size_t kReportStride = 64;
constexpr size_t kReportsPerPage = 64;

// Errors: kUnsupported if there is no GPU or fewer than ordinal + 1.
void require_gpu(int ordinal) {
  const int count = num_cuda_devices();
  if (count == 0) {
    fail(ErrorCode::kUnsupported, "device 'cuda:{}' was asked for, but {}; use the device 'cpu'",
         ordinal, why_no_cuda());
  }
  if (ordinal >= count) {
    fail(ErrorCode::kUnsupported, "device 'cuda:{}' was asked for, but this machine has {} GPU{}",
         ordinal, count, count == 1 ? ": use 'cuda:0'" : fmt::format("s: 0 to {}", count - 1));
  }
}

}  // namespace

int num_cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver counts as no GPU; clear the error
  return 0;
}

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    int version = 0;
    cudaDriverGetVersion(&version);
    return version == 0 ? "no NVIDIA driver was found on this machine"
                        : fmt::format(
                              "the NVIDIA driver of this machine knows CUDA {}.{} only, "
                              "and this build needs {}.{}",
                              version / 1000, version % 1000 / 10, CUDART_VERSION / 1000,
                              CUDART_VERSION % 1000 / 10);
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return "this machine has no GPU that CUDA can use";
  }
  return status == cudaSuccess ? "" : "the CUDA driver says: " + cuda_error_text(status);
}

// Formats the UUID as nvidia-smi does: groups of 4, 2, 2, 2 and 6 bytes.
std::string cuda_device_id(int ordinal) {
  require_gpu(ordinal);
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  std::string id = "GPU";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    id += fmt::format("{}{:02x}", starts_group ? "-" : "",
                      static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return id;
}

std::unique_ptr<Device> make_cuda_device(int ordinal, const DeviceOptions& options,
                                         std::unique_ptr<DeviceHook> hook) {
  return std::make_unique<CudaDevice>(ordinal, options, std::move(hook));
}

CudaDevice::CudaDevice(int ordinal, const DeviceOptions& options, std::unique_ptr<DeviceHook> hook)
    : options_(options),
      ordinal_(ordinal),
      memory_(options.memory_limit_bytes),
      hook_(std::move(hook)) {
  require_gpu(ordinal);
  if (hook_ != nullptr && hook_->meters_transfers()) {
    fail(ErrorCode::kInvalidArgument,
         "a hook meters transfers, but the link of 'cuda:{}' cannot be slowed down; use the "
         "device 'cpu'",
         ordinal);
  }
  make_current();
  check_cuda(cudaGetDeviceProperties(&properties_, ordinal), "cudaGetDeviceProperties");
  const int version = cuda::code_version();
  if (version < 10 * properties_.major + properties_.minor) {
    properties_.major = version / 10;
    properties_.minor = version % 10;
  }
  if (hook_ != nullptr && hook_->most_shared_bytes() > 0) {
    properties_.sharedMemPerBlockOptin =
        std::min(properties_.sharedMemPerBlockOptin, hook_->most_shared_bytes());
  }
}

CudaDevice::~CudaDevice() {
  SLUICE_CHECK(num_streams_ == 0, "{} streams outlive their device", num_streams_);
  for (MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice}) {
    SLUICE_CHECK(memory_.allocated_bytes(kind) == 0, "{} bytes of {} memory outlive their device",
                 memory_.allocated_bytes(kind), memory_kind_name(kind));
  }
  for (void* page : report_pages_) cudaFreeHost(page);
  cudaGetLastError();
}

void CudaDevice::make_current() const { check_cuda(cudaSetDevice(ordinal_), "cudaSetDevice"); }

DeviceInfo CudaDevice::info() const {
  make_current();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  const size_t limit_bytes = memory_.device_limit_bytes();
  if (limit_bytes != 0) {
    total_bytes = std::min(total_bytes, limit_bytes);
    free_bytes = std::min(free_bytes, limit_bytes - memory_.allocated_bytes(MemoryKind::kDevice));
  }
  return DeviceInfo{.name = properties_.name,
                    .total_memory_bytes = total_bytes,
                    .free_memory_bytes = free_bytes,
                    .num_cores = properties_.multiProcessorCount};
}

std::unique_ptr<Stream> CudaDevice::make_stream(const StreamOptions& options) {
  make_current();
  auto stream = std::make_unique<CudaStream>(*this, options.name);
  ++num_streams_;
  return stream;
}

std::unique_ptr<Event> CudaDevice::make_event() { return std::make_unique<CudaEvent>(*this); }

Buffer CudaDevice::allocate(size_t size_bytes, MemoryKind kind,
                            const AllocationProgress& on_progress) {
  if (size_bytes == 0) return Buffer();
  make_current();
  Buffer buffer(this, memory_.allocate(size_bytes, kind, on_progress), size_bytes, kind);
  if (on_progress) on_progress(size_bytes, size_bytes);
  return buffer;
}

void CudaDevice::deallocate(std::byte* data, size_t size_bytes, MemoryKind kind) noexcept {
  cudaSetDevice(ordinal_);
  memory_.deallocate(data, size_bytes, kind);
}

// Ledgers and their words live as long as the device, since events may refer to them after their
// stream is gone. Words come from pinned pages of kReportsPerPage each.
CudaLedger& CudaDevice::make_ledger(const std::string& stream_name) {
  const size_t slot = ledgers_.size() % kReportsPerPage;
  if (slot == 0) {
    constexpr size_t kPageBytes = kReportStride * kReportsPerPage;
    void* page = nullptr;
    check_cuda(cudaHostAlloc(&page, kPageBytes, cudaHostAllocPortable | cudaHostAllocMapped),
               "cudaHostAlloc for reports of kernels");
    std::memset(page, 0, kPageBytes);
    report_pages_.push_back(page);
  }
  std::byte* word = static_cast<std::byte*>(report_pages_.back()) + slot * kReportStride;
  ledgers_.push_back(std::make_unique<CudaLedger>(stream_name, reinterpret_cast<uint64_t*>(word)));
  return *ledgers_.back();
}

// Every later call would return the sticky error, so the first text is kept: it has the ops that
// were newest when it happened.
SharedError CudaDevice::fault(cudaError_t status) {
  cudaGetLastError();
  if (sticky_error_ != nullptr) return sticky_error_;
  const bool sticky = is_sticky(status);
  auto error = std::make_shared<const Error>(
      ErrorCode::kDevice,
      fmt::format("{}; CUDA does not say which op it was: the newest of each stream are {}{}",
                  cuda_error_text(status), newest_ops(),
                  sticky ? "; this process cannot use the GPU any more: run it again, under "
                           "compute-sanitizer to find the op"
                         : ""),
      fmt::format("device 'cuda:{}'", ordinal_));
  if (sticky) sticky_error_ = error;
  return error;
}

std::string CudaDevice::newest_ops() const {
  std::string text;
  for (const auto& ledger : ledgers_) {
    const std::string ops = ledger->newest_ops();
    if (ops.empty()) continue;
    text += fmt::format("{}'{}': {}", text.empty() ? "" : "; ", ledger->stream_name(), ops);
  }
  return text.empty() ? "none" : text;
}

CudaDevice& as_cuda(Device& device) {
  SLUICE_CHECK(dynamic_cast<CudaDevice*>(&device) != nullptr, "not a CUDA device");
  return static_cast<CudaDevice&>(device);
}

const CudaDevice& as_cuda(const Device& device) { return as_cuda(const_cast<Device&>(device)); }

}  // namespace sluice
