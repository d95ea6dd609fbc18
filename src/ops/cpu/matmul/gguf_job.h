// The matrix product with weights in GGUF's blocks: a job converts slices of its panels to the bf16
// that their codes stand for, and hands them to the kernel of the ISA, which goes on with the sums
// of the slices before.
//
// So a product has the bits of that with the same numbers in bf16. Used by
// ops/cpu/matmul/product.h. Thread rule: see matmul/kernel.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/matmul/kernel.h"
#include "ops/cpu/matmul/scaled_job.h"

namespace sluice::cpu {

// Rows of a job, in jobs of the kernel: to convert a number takes longer than to multiply it by a
// few rows.
inline constexpr int64_t kGgufRowBlocks = 4;

// Scratch of run_gguf_job. It depends on the kernel alone.
size_t gguf_scratch_bytes(const MatmulKernel& kernel);

// Computes a job of `problem`, whose `weight` is not read.
// REQUIRES: as MatmulKernel::run, but for up to kGgufRowBlocks times its rows.
void run_gguf_job(const MatmulProblem& problem, const ScaledPanels& panels, const MatmulJob& job,
                  const MatmulKernel& kernel, std::byte* scratch);

}  // namespace sluice::cpu
