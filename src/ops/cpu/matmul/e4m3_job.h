// The matrix product with weights in e4m3: a job converts 128 columns of its panels to bf16, which
// is exact, and hands them to the kernel of the ISA.
//
// Used by ops/cpu/matmul/matmul.cc. Thread rule: see matmul/kernel.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/matmul/kernel.h"

namespace sluice::cpu {

// Packed layout of a panel: the numbers in the order of matmul/kernel.h, a byte each, then the
// scales, f32 [scales_per_row][16 out features]. Padding is zero, in scales too.
struct E4m3Panels {
  const std::byte* data = nullptr;
  int64_t scales_per_row = 0;  // 1, or one for each 128 columns
};

// Scratch of run_e4m3_job. It depends on the kernel alone.
size_t e4m3_scratch_bytes(const MatmulKernel& kernel);

// Computes a job of `problem`, whose `weight` is not read.
// Order of accumulation: sums over 128 columns in the kernel's order; each, times its scale, is
// added in ascending order of columns. A row is therefore independent of its neighbours.
// REQUIRES: as MatmulKernel::run.
void run_e4m3_job(const MatmulProblem& problem, const E4m3Panels& panels, const MatmulJob& job,
                  const MatmulKernel& kernel, std::byte* scratch);

}  // namespace sluice::cpu
