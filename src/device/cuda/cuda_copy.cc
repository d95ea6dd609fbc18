// Copies and fills of a CUDA stream, for all kinds of memory.
//
// Copy engines move bytes between pinned and device memory. For other kinds the runtime's
// asynchronous calls would block the host until the stream is done (pageable memory) or run at once
// (host to host, filling pinned memory), which the contract forbids. A host function in stream
// order does the host's part instead. It is slow (memcpy on the driver's single thread, and a fixed
// cost per piece) and used only for loading and tests.
#include <algorithm>
#include <cstring>
#include <memory>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"

namespace sluice {
namespace {

constexpr size_t kStagingBytes = size_t{2} << 20;  // one piece of a staged copy
constexpr size_t kMaxStrideBytes = 0x7fffffff;  // limit of strided copies: cudaDeviceProp::memPitch

struct HostFill {
  std::byte* dst;
  size_t num_bytes;
  uint8_t value;
};

// Host functions: they run on the driver's thread and must not call CUDA.
void run_copy(const Copy2dArgs& args) {
  for (size_t row = 0; row < args.num_rows; ++row) {
    std::memcpy(args.dst + row * args.dst_stride_bytes, args.src + row * args.src_stride_bytes,
                args.row_bytes);
  }
}

void run_fill(const HostFill& args) { std::memset(args.dst, args.value, args.num_bytes); }

// Enqueues `kRun(args)` as a host function. After a CUDA error CUDA does not run it, and its copy
// of `args` leaks.
template <auto kRun, typename Args>
void launch_on_host(cudaStream_t handle, const Args& args) {
  auto kept = std::make_unique<Args>(args);
  const auto call = [](void* data) {
    const std::unique_ptr<Args> owned(static_cast<Args*>(data));
    kRun(*owned);
  };
  check_cuda(cudaLaunchHostFunc(handle, call, kept.get()), "cudaLaunchHostFunc");
  kept.release();
}

// A copy by a copy engine. REQUIRES: both sides are pinned or device memory.
void launch_copy(cudaStream_t handle, const Copy2dArgs& args) {
  // Rows may be further apart than a strided copy allows: those of a tail in all layers have the
  // layer stride of the host tier. They are copied one by one.
  const bool is_too_wide = std::max(args.dst_stride_bytes, args.src_stride_bytes) > kMaxStrideBytes;
  if (args.num_rows == 1 || is_too_wide) {
    for (size_t row = 0; row < args.num_rows; ++row) {
      check_cuda(cudaMemcpyAsync(args.dst + row * args.dst_stride_bytes,
                                 args.src + row * args.src_stride_bytes, args.row_bytes,
                                 cudaMemcpyDefault, handle),
                 "cudaMemcpyAsync");
    }
    return;
  }
  check_cuda(cudaMemcpy2DAsync(args.dst, args.dst_stride_bytes, args.src, args.src_stride_bytes,
                               args.row_bytes, args.num_rows, cudaMemcpyDefault, handle),
             "cudaMemcpy2DAsync");
}

// Bytes from the first to the last byte of a strided side.
size_t extent_bytes(const Copy2dArgs& args, size_t stride_bytes) {
  return (args.num_rows - 1) * stride_bytes + args.row_bytes;
}

// The op's name in errors and timelines.
const char* copy_name(bool from_device, bool to_device) {
  if (from_device) return to_device ? "copy d2d" : "copy d2h";
  return to_device ? "copy h2d" : "copy h2h";
}

// The part of `args` that begins `offset_bytes` into `row` and fits the staging buffer: several
// whole rows, or a part of one row longer than the buffer.
Copy2dArgs piece_of(const Copy2dArgs& args, size_t row, size_t offset_bytes) {
  const size_t rows_per_piece = std::max<size_t>(1, kStagingBytes / args.row_bytes);
  Copy2dArgs piece = args;
  piece.dst += row * args.dst_stride_bytes + offset_bytes;
  piece.src += row * args.src_stride_bytes + offset_bytes;
  piece.row_bytes = std::min(args.row_bytes - offset_bytes, kStagingBytes);
  piece.num_rows = std::min(args.num_rows - row, rows_per_piece);
  return piece;
}

}  // namespace

void CudaStream::copy(const CopyArgs& args) {
  copy_2d({.dst = args.dst,
           .dst_stride_bytes = args.num_bytes,
           .src = args.src,
           .src_stride_bytes = args.num_bytes,
           .row_bytes = args.num_bytes,
           .num_rows = 1});
}

void CudaStream::copy_2d(const Copy2dArgs& args) {
  SLUICE_CHECK(args.dst_stride_bytes >= args.row_bytes, "{} < {}", args.dst_stride_bytes,
               args.row_bytes);
  SLUICE_CHECK(args.src_stride_bytes >= args.row_bytes, "{} < {}", args.src_stride_bytes,
               args.row_bytes);
  if (args.num_rows == 0 || args.row_bytes == 0) return;
  const CudaMemory& memory = device_.memory();
  const MemoryKind from = memory.kind_at(args.src, extent_bytes(args, args.src_stride_bytes));
  const MemoryKind to = memory.kind_at(args.dst, extent_bytes(args, args.dst_stride_bytes));
  const bool from_device = from == MemoryKind::kDevice;
  const bool to_device = to == MemoryKind::kDevice;
  submit(copy_name(from_device, to_device), [&](cudaStream_t handle) {
    if (!from_device && !to_device) {
      copy_on_host(args);
    } else if (from == MemoryKind::kHost || to == MemoryKind::kHost) {
      copy_staged(args, to_device);
    } else {
      launch_copy(handle, args);
    }
  });
}

// Host to host: a host function copies in stream order.
void CudaStream::copy_on_host(const Copy2dArgs& args) {
  SLUICE_CHECK(!capture_.active(), "a copy from host to host has no place in a graph");
  launch_on_host<run_copy>(handle_, args);
}

// Between pageable and device memory, through a pinned buffer. One buffer suffices, since the
// pieces run in stream order: each is out of the buffer before the next one is copied in.
void CudaStream::copy_staged(const Copy2dArgs& args, bool to_device) {
  SLUICE_CHECK(!capture_.active(), "a copy of pageable memory has no place in a graph");
  std::byte* staged = staging();
  for (size_t row = 0; row < args.num_rows;) {
    size_t rows_done = 1;
    for (size_t offset = 0; offset < args.row_bytes; offset += kStagingBytes) {
      const Copy2dArgs piece = piece_of(args, row, offset);
      Copy2dArgs in = piece;
      in.dst = staged;
      in.dst_stride_bytes = piece.row_bytes;
      Copy2dArgs out = piece;
      out.src = staged;
      out.src_stride_bytes = piece.row_bytes;
      if (to_device) {
        launch_on_host<run_copy>(handle_, in);
        launch_copy(handle_, out);
      } else {
        launch_copy(handle_, in);
        launch_on_host<run_copy>(handle_, out);
      }
      rows_done = piece.num_rows;
    }
    row += rows_done;
  }
}

// The stream's staging buffer, allocated by the first staged copy.
std::byte* CudaStream::staging() {
  if (staging_ == nullptr) {
    void* data = nullptr;
    check_cuda(cudaHostAlloc(&data, kStagingBytes, cudaHostAllocPortable),
               "cudaHostAlloc for staged copies");
    staging_ = static_cast<std::byte*>(data);
  }
  return staging_;
}

void CudaStream::fill(std::byte* dst, size_t num_bytes, uint8_t value) {
  if (num_bytes == 0) return;
  const bool on_device = device_.memory().kind_at(dst, num_bytes) == MemoryKind::kDevice;
  submit("fill", [&](cudaStream_t handle) {
    if (on_device) {
      check_cuda(cudaMemsetAsync(dst, value, num_bytes, handle), "cudaMemsetAsync");
      return;
    }
    SLUICE_CHECK(!capture_.active(), "filling host memory has no place in a graph");
    launch_on_host<run_fill>(handle, HostFill{dst, num_bytes, value});
  });
}

}  // namespace sluice
