// Packs a checkpoint's rows: bf16 is copied, f16 and f32 are converted by a kernel that reads the
// staging memory over the link.
//
// Used once per weight while a model loads. Bound: the link. Tile: pieces of 8 MiB; a converting
// thread reads single elements, 64 or 128 bytes a warp. Thread rule: as CudaStream::submit; the
// call returns when the source has been read, and after a conversion when the stream is idle.
#include <cstring>
#include <span>

#include <cuda_fp16.h>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/gguf.h"
#include "ops/cuda/matmul/integers.h"
#include "ops/cuda/matmul/matmul.h"
#include "ops/cuda/matmul/state.h"

namespace sluice::cuda {
namespace {

constexpr int kConvertThreads = 256;

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }

// dst = bf16(src). `src` is pinned host memory, read over the link.
template <typename Element>
__global__ void __launch_bounds__(kConvertThreads)
    convert(const Element* src, uint16_t* dst, int64_t num_elements) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kConvertThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kConvertThreads + threadIdx.x;
#pragma unroll 4
  for (int64_t i = first; i < num_elements; i += stride) dst[i] = float_to_bf16(to_float(src[i]));
}

template <typename Element>
void launch_convert(cudaStream_t stream, const std::byte* src, uint16_t* dst, size_t num_bytes) {
  const auto num_elements = static_cast<int64_t>(num_bytes / sizeof(Element));
  const int64_t num_blocks = (num_elements + kConvertThreads - 1) / kConvertThreads;
  convert<<<static_cast<unsigned>(min(num_blocks, int64_t{1024})), kConvertThreads, 0, stream>>>(
      reinterpret_cast<const Element*>(src), dst, num_elements);
}

// Scales of blocks, which are stored as they are: a row of blocks has a multiple of 4 places, as
// cuBLASLt reads them, and zeros in those that stand for no columns.
void pack_block_scales(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state) {
  const E4m3ScaleLayout layout =
      e4m3_scale_layout(args.dst.format, args.dst.num_rows, args.dst.num_cols);
  const int64_t per_row = scales_per_row(args.dst.format, args.dst.num_cols);
  float* const dst = e4m3_scales(args.dst) + args.row_begin / kScaleGroup * layout.row_stride;
  const auto fetch = [&](size_t offset, std::span<std::byte> piece) {
    auto* to = reinterpret_cast<float*>(piece.data());
    auto at = static_cast<int64_t>(offset / sizeof(float));
    for (size_t i = 0; i < piece.size() / sizeof(float); ++i, ++at) {
      const int64_t group = at % layout.row_stride;
      const int64_t row = at / layout.row_stride;
      to[i] = group < per_row ? args.scales.data<float>()[row * per_row + group] : 0.0f;
    }
  };
  const auto enqueue = [&](const std::byte* piece, size_t offset, size_t num_bytes) {
    check_cuda(
        cudaMemcpyAsync(dst + offset / sizeof(float), piece, num_bytes, cudaMemcpyDefault, handle),
        "cudaMemcpyAsync");
  };
  const auto num_scales = static_cast<size_t>(args.scales.dim(0) * layout.row_stride);
  state.staging().run(handle, num_scales * sizeof(float), fetch, enqueue);
}

// The scales of the rows, each as often as it stands for a row, a group of columns at a time.
void pack_scales(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state) {
  if (args.dst.format == WeightFormat::kE4m3Blocks) return pack_block_scales(handle, args, state);
  const int64_t per_row = scales_per_row(args.dst.format, args.dst.num_cols);
  for (int64_t group = 0; group < per_row; ++group) {
    float* const dst = e4m3_scales(args.dst) + group * args.dst.num_rows + args.row_begin;
    const auto fetch = [&](size_t offset, std::span<std::byte> piece) {
      auto* to = reinterpret_cast<float*>(piece.data());
      auto row = static_cast<int64_t>(offset / sizeof(float));
      for (size_t i = 0; i < piece.size() / sizeof(float); ++i, ++row) {
        to[i] = args.scales.data<float>()[row / args.scale_rows * per_row + group];
      }
    };
    const auto enqueue = [&](const std::byte* piece, size_t offset, size_t num_bytes) {
      check_cuda(cudaMemcpyAsync(dst + offset / sizeof(float), piece, num_bytes, cudaMemcpyDefault,
                                 handle),
                 "cudaMemcpyAsync");
    };
    const auto num_scales = static_cast<size_t>(args.src.dim(0));
    state.staging().run(handle, num_scales * sizeof(float), fetch, enqueue);
  }
}

}  // namespace

// Order: unlike on the CPU device, `src` has been read when this returns; the host's threads copy
// it piece by piece into pinned memory.
void CudaOps::pack_weight(Stream& on, const PackWeightArgs& args) const {
  const bool is_e4m3 = stores_e4m3(args.dst.format);
  CudaStream& stream = as_cuda(on);
  if (stores_integers(args.dst.format) || has_gguf_kernels(args.dst.format)) {
    return stream.submit("pack_weight", [&](cudaStream_t handle) {
      const auto pack = stores_gguf(args.dst.format) ? pack_gguf : pack_integers;
      pack(handle, args, matmul_state(stream));
    });
  }
  if (!is_e4m3) expect_weight_format("pack_weight", args.dst.format, WeightFormat::kBFloat16);
  stream.submit("pack_weight", [&](cudaStream_t handle) {
    const DType dtype = args.src.dtype();
    const size_t dst_bytes = is_e4m3 ? 1 : sizeof(uint16_t);
    std::byte* const dst =
        args.dst.data + static_cast<size_t>(args.row_begin * args.dst.num_cols) * dst_bytes;
    const auto enqueue = [&](const std::byte* piece, size_t offset, size_t num_bytes) {
      std::byte* const target = dst + offset / dtype_bytes(dtype) * dst_bytes;
      auto* const bf16 = reinterpret_cast<uint16_t*>(target);
      if (dtype == DType::kF32) return launch_convert<float>(handle, piece, bf16, num_bytes);
      if (dtype == DType::kF16) return launch_convert<__half>(handle, piece, bf16, num_bytes);
      check_cuda(cudaMemcpyAsync(target, piece, num_bytes, cudaMemcpyDefault, handle),
                 "cudaMemcpyAsync");
    };
    const auto fetch = [&](size_t offset, std::span<std::byte> piece) {
      if (args.reader != nullptr) return args.reader->read(offset, piece);
      std::memcpy(piece.data(), args.src.bytes() + offset, piece.size());
    };
    matmul_state(stream).staging().run(handle, args.src.num_bytes(), fetch, enqueue);
    if (is_e4m3) {
      matmul_state(stream).converted();
      pack_scales(handle, args, matmul_state(stream));
    }
    // Products read weights before earlier kernels are done (early_launch.cuh).
    if (dtype == DType::kF32 || dtype == DType::kF16)
      check_cuda(cudaStreamSynchronize(handle), "cudaStreamSynchronize");
  });
}

}  // namespace sluice::cuda
