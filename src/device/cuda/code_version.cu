// All kernels are compiled for the same GPUs, so one of them tells for all.
#include <cuda_runtime_api.h>

#include "core/error.h"
#include "device/cuda/code_version.h"
#include "device/cuda/cuda_check.h"

namespace sluice::cuda {
namespace {

__global__ void any_kernel() {}

}  // namespace

int code_version() {
  cudaFuncAttributes attributes = {};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel);
  if (status == cudaErrorNoKernelImageForDevice) {
    cudaGetLastError();
    fail(ErrorCode::kUnsupported,
         "this build has no code for this GPU; build with SLUICE_CUDA_ARCHITECTURES set to its "
         "compute capability, or use the device 'cpu'");
  }
  check_cuda(status, "cudaFuncGetAttributes");
  return attributes.ptxVersion;
}

}  // namespace sluice::cuda
