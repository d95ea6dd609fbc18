// Encodes tensor maps through the driver.
#include "ops/cuda/attention/kv_tensor_map.h"

#include <algorithm>
#include <array>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

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

template <size_t kRank>
CUtensorMap make_tensor_map(const void* base, const std::array<int64_t, kRank>& sizes,
                            const std::array<int64_t, kRank - 1>& strides,
                            const std::array<int32_t, kRank>& box) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
  std::array<cuuint64_t, kRank> dims;
  std::array<cuuint64_t, kRank - 1> outer_strides;  // the innermost one is the element's size
  std::array<cuuint32_t, kRank> box_dims;
  std::array<cuuint32_t, kRank> steps;
  std::ranges::copy(sizes, dims.begin());
  std::ranges::copy(strides, outer_strides.begin());
  std::ranges::copy(box, box_dims.begin());
  steps.fill(1);
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(base), dims.data(),
             outer_strides.data(), box_dims.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    fail(ErrorCode::kDevice, "cuTensorMapEncodeTiled gave error {} for sizes {} at {}",
         static_cast<int>(status), fmt::join(sizes, ", "), base);
  }
  return map;
}

template CUtensorMap make_tensor_map<4>(const void*, const std::array<int64_t, 4>&,
                                        const std::array<int64_t, 3>&,
                                        const std::array<int32_t, 4>&);
template CUtensorMap make_tensor_map<5>(const void*, const std::array<int64_t, 5>&,
                                        const std::array<int64_t, 4>&,
                                        const std::array<int32_t, 5>&);

CUtensorMap make_kv_tensor_map(const KvBlocksView& kv, int32_t box_tokens) {
  const KvBlockShape& shape = kv.shape;
  const int32_t lines = lines_per_head(shape);
  const size_t line_bytes = lines == 2 ? shape.keys().bytes() : shape.head_bytes();
  return make_tensor_map(
      kv.base,
      {shape.head_dim, shape.block_tokens, int64_t{shape.num_kv_heads} * lines, kv.num_blocks},
      {static_cast<int64_t>(shape.keys().token_bytes()), static_cast<int64_t>(line_bytes),
       static_cast<int64_t>(kv.stride_bytes)},
      {64, box_tokens, 1, 1});
}

}  // namespace sluice::cuda
