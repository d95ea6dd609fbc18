// A matrix product cut into jobs of rows x panels, which the kernel of the ISA computes.
//
// Used by matmul.cc and by experts/expert_mlp.cc, which runs the jobs of several products side by
// side. How a product is cut depends on its shape and on the number of threads; the result does not
// (see MatmulKernel), since every job computes whole sums over k. Thread rule: pure functions; a
// job has the scratch of its thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/matmul/kernel.h"
#include "ops/cpu/matmul/scaled_job.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {
enum class CpuIsa;
}

namespace sluice::cpu {

// Several jobs per thread: when the system preempts one thread, the others take its remaining jobs.
inline constexpr int64_t kJobsPerThread = 4;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

const MatmulKernel& kernel_of(CpuIsa isa);

struct Product {
  MatmulProblem problem;
  ScaledPanels scaled;  // no data: the weight is bf16

  // The product with the weight `offset` bytes further on, of the same shape and format.
  Product at(size_t offset) const {
    Product product = *this;
    product.problem.weight += offset / sizeof(uint16_t);
    if (scaled.data != nullptr) product.scaled.data += offset;
    return product;
  }
};

// What a product takes from its weight: n, k and the panels.
// Errors: kUnsupported naming `op` for a format without kernels.
Product product_of(const char* op, const PackedWeight& weight);

// The jobs of one product: a grid of row blocks x panel groups.
struct JobPlan {
  int64_t num_row_blocks = 0;
  int64_t rows_per_job = 0;
  int64_t num_panels = 0;
  int64_t panels_per_job = 0;

  int64_t num_jobs() const { return num_row_blocks * ceil_div(num_panels, panels_per_job); }

  // Row blocks of one panel group are neighbours: they share its weights in the last-level cache.
  MatmulJob job(int64_t index, int64_t m) const {
    const int64_t row = index % num_row_blocks * rows_per_job;
    const int64_t panel = index / num_row_blocks * panels_per_job;
    return {.row_begin = row,
            .num_rows = std::min(rows_per_job, m - row),
            .panel_begin = panel,
            .num_panels = std::min(panels_per_job, num_panels - panel)};
  }
};

// REQUIRES: at least one row.
JobPlan plan_jobs(const Product& product, const MatmulKernel& kernel, int64_t wanted_jobs);

// The scratch depends on the kernel and on whether the weight is in GGUF's blocks, so a thread
// allocates it in its first products and never again: a decode step after these allocates nothing.
void run_job_of(const Product& product, const MatmulJob& job, const MatmulKernel& kernel);

}  // namespace sluice::cpu
