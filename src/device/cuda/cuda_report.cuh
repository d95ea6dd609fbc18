// The kernel's side of CudaReport.
//
// Included by .cu files of ops that can meet bad input. Thread rule: device code.
#pragma once

#include "device/cuda/cuda_report.h"

namespace sluice::cuda {

// Reports `row`, unless an earlier report is there. If several threads report at once, one of the
// reports is kept, unspecified which; a 64-bit store is never torn.
// Cost: a read and a write over the bus when called.
__device__ inline void fail_row(const CudaReport& report, int64_t row) {
  volatile uint64_t* word = report.word;
  if (*word != 0) return;
  const uint64_t shown = min(static_cast<uint64_t>(row), kMaxReportedRow);
  *word = (static_cast<uint64_t>(report.message) << 56) | (shown << 32) | report.serial;
}

}  // namespace sluice::cuda
