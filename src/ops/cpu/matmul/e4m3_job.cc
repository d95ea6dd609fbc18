// Converts slices of 128 columns, multiplies them with the kernel of the ISA, and adds their sums.
//
// The conversion is integer arithmetic in loops that the compiler turns into vectors of the
// baseline ISA: with few rows these are more instructions than the product has. A kernel that
// converts in registers needs fewer, and is one more for each ISA.
#include "ops/cpu/matmul/e4m3_job.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/matmul/block.h"
#include "ops/e4m3.h"
#include "ops/matmul/packed_weight.h"

namespace sluice::cpu {
namespace {

// Numbers of a panel in a slice of 128 columns.
constexpr int64_t kSliceNumbers = kScaleGroup * kPanelRows;
constexpr int16_t kUnitOrigin = e4m3_origin(127);  // of a scale of 1

// Where a job keeps what: slices of its panels in bf16, their sums, and the sums of all slices.
struct Scratch {
  uint16_t* weight = nullptr;  // [panels][slice columns / 2][16][2]
  float* slice_sums = nullptr;
  float* sums = nullptr;  // [rows][panels * 16], as slice_sums
  std::byte* of_kernel = nullptr;
};

int64_t num_sums(const MatmulKernel& kernel) {
  return kernel.max_rows * kernel.max_panels * kPanelRows;
}

Scratch cut(const MatmulKernel& kernel, std::byte* scratch) {
  Scratch cut;
  cut.weight = reinterpret_cast<uint16_t*>(scratch);
  cut.slice_sums = reinterpret_cast<float*>(cut.weight + kernel.max_panels * kSliceNumbers);
  cut.sums = cut.slice_sums + num_sums(kernel);
  cut.of_kernel = reinterpret_cast<std::byte*>(cut.sums + num_sums(kernel));
  return cut;
}

// Exact, since each number of e4m3 is a normal bf16 or 0; NaN stays NaN.
void convert(const uint8_t* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t number = e4m3_to_bf16(from[i], kUnitOrigin);
    to[i] = (from[i] & 0x7f) == 0x7f ? uint16_t{0x7fc0} : number;
  }
}

// sums[row] += scales * slice_sums[row], over the 16 out features of a panel. Not fused, so that
// the bits do not depend on the compiler's choice of instructions.
void add_scaled(const float* slice_sums, const float* scales, int64_t num_rows, int64_t stride,
                float* sums) {
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < kPanelRows; ++i) {
      sums[row * stride + i] += slice_sums[row * stride + i] * scales[i];
    }
  }
}

// The slice of columns from `begin` on, as a product of its own: whole panels, so that no tail is
// cut off, without bias, in f32.
void multiply_slice(const MatmulProblem& problem, const MatmulJob& job, int64_t begin,
                    const MatmulKernel& kernel, const Scratch& at) {
  const int64_t padded = std::min(kScaleGroup, problem.padded_k - begin);
  const MatmulProblem slice{.x = problem.x + job.row_begin * problem.x_stride + begin,
                            .x_stride = problem.x_stride,
                            .weight = at.weight,
                            .out = at.slice_sums,
                            .out_is_f32 = true,
                            .m = job.num_rows,
                            .n = job.num_panels * kPanelRows,
                            .k = std::min(padded, problem.k - begin),
                            .padded_k = padded};
  kernel.run(slice, {.num_rows = job.num_rows, .num_panels = job.num_panels}, at.of_kernel);
}

}  // namespace

size_t e4m3_scratch_bytes(const MatmulKernel& kernel) {
  return static_cast<size_t>(kernel.max_panels * kSliceNumbers) * sizeof(uint16_t) +
         static_cast<size_t>(2 * num_sums(kernel)) * sizeof(float) + kernel.scratch_bytes;
}

void run_e4m3_job(const MatmulProblem& problem, const E4m3Panels& panels, const MatmulJob& job,
                  const MatmulKernel& kernel, std::byte* scratch) {
  const Scratch at = cut(kernel, scratch);
  const int64_t numbers_bytes = problem.padded_k * kPanelRows;
  const int64_t panel_bytes =
      numbers_bytes + panels.scales_per_row * kPanelRows * static_cast<int64_t>(sizeof(float));
  const std::byte* const first = panels.data + job.panel_begin * panel_bytes;
  const int64_t stride = job.num_panels * kPanelRows;
  std::fill(at.sums, at.sums + job.num_rows * stride, 0.0f);
  for (int64_t begin = 0; begin < problem.padded_k; begin += kScaleGroup) {
    const int64_t padded = std::min(kScaleGroup, problem.padded_k - begin);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      convert(reinterpret_cast<const uint8_t*>(first + panel * panel_bytes) + begin * kPanelRows,
              padded * kPanelRows, at.weight + panel * padded * kPanelRows);
    }
    multiply_slice(problem, job, begin, kernel, at);
    const int64_t group = panels.scales_per_row == 1 ? 0 : begin / kScaleGroup;
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      const auto* scales =
          reinterpret_cast<const float*>(first + panel * panel_bytes + numbers_bytes);
      add_scaled(at.slice_sums + panel * kPanelRows, scales + group * kPanelRows, job.num_rows,
                 stride, at.sums + panel * kPanelRows);
    }
  }
  write_job(problem, job, at.sums, stride);
}

}  // namespace sluice::cpu
