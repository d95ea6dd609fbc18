// The test kernels and their launches.
#include "device/cuda/cuda_report.cuh"
#include "support/cuda/test_kernels.h"

namespace sluice::testing {
namespace {

__global__ void gate_kernel(volatile const uint32_t* word) {
  while (*word == 0) __nanosleep(1000);
}

__global__ void report_kernel(CudaReport report, int32_t num_rows, int32_t bad_row) {
  const int32_t row = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < num_rows && row == bad_row) cuda::fail_row(report, row);
}

__global__ void add_one_kernel(int32_t* value) { *value += 1; }

__global__ void trap_kernel() { __trap(); }

}  // namespace

void launch_gate(cudaStream_t stream, volatile const uint32_t* word) {
  gate_kernel<<<1, 1, 0, stream>>>(word);
}

void launch_report(cudaStream_t stream, const CudaReport& report, int32_t num_rows,
                   int32_t bad_row) {
  report_kernel<<<(num_rows + 127) / 128, 128, 0, stream>>>(report, num_rows, bad_row);
}

void launch_add_one(cudaStream_t stream, int32_t* value) {
  add_one_kernel<<<1, 1, 0, stream>>>(value);
}

void launch_trap(cudaStream_t stream) { trap_kernel<<<1, 1, 0, stream>>>(); }

void launch_too_wide(cudaStream_t stream) { add_one_kernel<<<1, 4096, 0, stream>>>(nullptr); }

}  // namespace sluice::testing
