// The matrix product in plain C++, for a CPU without AVX2 and as the kernel to read first.
//
// Used by matmul/matmul.cc. One row and one panel at a time, multiply then add (no fused
// rounding), ascending k. Thread rule: see matmul/kernel.h.
#include "ops/cpu/matmul/block.h"
#include "ops/cpu/matmul/gguf.h"

namespace sluice {
namespace {

// Even and odd k of an out feature are neighbours in the packed layout (matmul/kernel.h).
void run_job(const MatmulProblem& problem, const MatmulJob& job, std::byte* /*scratch*/) {
  for (int64_t panel = job.panel_begin; panel < job.panel_begin + job.num_panels; ++panel) {
    const uint16_t* weight = problem.weight + panel * problem.padded_k * kPanelRows;
    for (int64_t row = job.row_begin; row < job.row_begin + job.num_rows; ++row) {
      const uint16_t* x = problem.x + row * problem.x_stride;
      float sums[kPanelRows] = {};
      if (problem.adds) {
        read_job(problem, {row, 1, panel, 1}, sums, kPanelRows);
      }
      for (int64_t k = 0; k < problem.k; ++k) {
        const uint16_t* column = weight + (k / 2) * 2 * kPanelRows + k % 2;
        const float value = widen(x[k]);
        for (int64_t i = 0; i < kPanelRows; ++i) sums[i] += widen(column[2 * i]) * value;
      }
      write_panel_row(problem, row, panel, sums);
    }
  }
}

constexpr MatmulKernel kKernel = {.max_rows = 64,
                                  .max_panels = 16,
                                  .run = &run_job,
                                  .convert_uint4 = &convert_integers<4>,
                                  .convert_uint8 = &convert_integers<8>,
                                  .convert_gguf4 = &convert_gguf<4>,
                                  .convert_gguf8 = &convert_gguf<8>};

}  // namespace

const MatmulKernel& matmul_kernel_scalar() { return kKernel; }

}  // namespace sluice
