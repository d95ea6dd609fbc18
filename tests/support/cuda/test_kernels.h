// Kernels for tests of CUDA streams: one that waits, one that reports, one that traps.
//
// Used by tests/support/cuda and tests/device/cuda. Thread rule: host thread, enqueue only.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_report.h"

namespace sluice::testing {

// Spins until *word is not 0.
void launch_gate(cudaStream_t stream, volatile const uint32_t* word);

// Row `bad_row` of `num_rows` reports; none does when it is negative.
void launch_report(cudaStream_t stream, const CudaReport& report, int32_t num_rows,
                   int32_t bad_row);

// Adds 1 to *value.
void launch_add_one(cudaStream_t stream, int32_t* value);

// Traps: the context is lost.
void launch_trap(cudaStream_t stream);

// A launch that every GPU refuses: blocks of 4096 threads.
void launch_too_wide(cudaStream_t stream);

}  // namespace sluice::testing
