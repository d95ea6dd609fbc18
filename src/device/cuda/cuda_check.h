// Checked CUDA calls: a failure becomes an Error that names the call.
//
// Used by src/device/cuda and src/ops/cuda for calls outside a stream's ops (allocation, events,
// creation). Work on a stream is checked by CudaStream::submit. Thread rule: any thread.
#pragma once

#include <string>

#include <cuda_runtime_api.h>

namespace sluice {

// "an illegal memory access was encountered (cudaErrorIllegalAddress)", with a remedy where one is
// known.
std::string cuda_error_text(cudaError_t status);

// Whether `status` means that the context is lost: every later call of the process fails with it.
bool is_sticky(cudaError_t status);

// Errors: throws kDevice with `call` and the text of `status` unless it is cudaSuccess. Clears the
// runtime's last error, so that no later check reports it again.
void check_cuda(cudaError_t status, const char* call);

}  // namespace sluice
