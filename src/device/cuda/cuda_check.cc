// Composes the texts of CUDA errors.
#include "device/cuda/cuda_check.h"

#include "core/error.h"

namespace sluice {

std::string cuda_error_text(cudaError_t status) {
  std::string text = fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  // The build lacks this GPU's architecture: name the option that adds it.
  if (status == cudaErrorNoKernelImageForDevice) {
    text +=
        "; this build has no kernels for this GPU: build with its compute capability in "
        "-DSLUICE_CUDA_ARCHITECTURES, such as 80, 86, 89 or 90a";
  }
  return text;
}

// The codes that the runtime's documentation marks with "The process must be terminated and
// relaunched".
bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

void check_cuda(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();
  fail(ErrorCode::kDevice, "{}: {}", call, cuda_error_text(status));
}

}  // namespace sluice
