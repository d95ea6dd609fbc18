// Encodes the tensor map of KV blocks through the driver.
#include "ops/cuda/attention/kv_tensor_map.h"

#include <array>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "core/error.h"
#include "device/cuda/cuda_check.h"

namespace sluice::cuda {
namespace {

// The driver's function, looked up by name so that the program links and starts without libcuda.
PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found),
             "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    fail(ErrorCode::kDevice,
         "the NVIDIA driver has no cuTensorMapEncodeTiled, which attention on this GPU needs; "
         "install a driver for CUDA 12 or newer");
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

bool has_kv_tensor_map(const KvBlocksView& kv) {
  return reinterpret_cast<uintptr_t>(kv.base) % 16 == 0 && kv.stride_bytes % 16 == 0;
}

CUtensorMap make_kv_tensor_map(const KvBlocksView& kv, int32_t box_tokens) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
  const auto row_bytes = static_cast<cuuint64_t>(kv.shape.head_dim) * sizeof(BFloat16);
  // Innermost first; the innermost stride is the element's size and is not given.
  const std::array<cuuint64_t, 4> dims = {
      static_cast<cuuint64_t>(kv.shape.head_dim), static_cast<cuuint64_t>(kv.shape.block_tokens),
      static_cast<cuuint64_t>(kv.shape.num_kv_heads) * 2, static_cast<cuuint64_t>(kv.num_blocks)};
  const std::array<cuuint64_t, 3> strides = {
      row_bytes, row_bytes * static_cast<cuuint64_t>(kv.shape.block_tokens), kv.stride_bytes};
  const std::array<cuuint32_t, 4> box = {64, static_cast<cuuint32_t>(box_tokens), 1, 1};
  const std::array<cuuint32_t, 4> steps = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, kv.base, dims.data(), strides.data(),
             box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(ErrorCode::kDevice,
         "cuTensorMapEncodeTiled gave error {} for {} blocks of {} bytes, {} apart",
         static_cast<int>(status), kv.num_blocks, kv.shape.block_bytes(), kv.stride_bytes);
  }
  return map;
}

}  // namespace sluice::cuda
