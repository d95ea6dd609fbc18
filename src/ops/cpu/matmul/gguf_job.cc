// Converts slices of columns, of all panels of a job, and multiplies them. Where a slice is cut
// changes no bit, since sums are chains over k.
#include "ops/cpu/matmul/gguf_job.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/matmul/block.h"

namespace sluice::cpu {
namespace {

// Jobs of few rows take slices that stay in L1: 32 KiB.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewPanels = 8;
constexpr int64_t kFewCols = 128;
constexpr int64_t kSliceCols = 512;

// Columns of a slice are a multiple of this many, more than any group has.
constexpr int64_t kMostGroupCols = 128;
static_assert(kFewCols % kMostGroupCols == 0 && kSliceCols % kMostGroupCols == 0);

struct Scratch {
  uint16_t* weight = nullptr;  // [panels][slice columns / 2][16][2]
  float* sums = nullptr;       // [rows][panels * 16]
  std::byte* of_kernel = nullptr;
};

int64_t num_sums(const MatmulKernel& kernel) {
  return kGgufRowBlocks * kernel.max_rows * kernel.max_panels * kPanelRows;
}

int64_t num_slice_numbers(const MatmulKernel& kernel) {
  return kernel.max_panels * kPanelRows * kSliceCols;
}

Scratch cut(const MatmulKernel& kernel, std::byte* scratch) {
  Scratch cut;
  cut.weight = reinterpret_cast<uint16_t*>(scratch);
  cut.sums = reinterpret_cast<float*>(cut.weight + num_slice_numbers(kernel));
  cut.of_kernel = reinterpret_cast<std::byte*>(cut.sums + num_sums(kernel));
  return cut;
}

struct Slice {
  int64_t begin = 0;
  int64_t count = 0;  // of columns
};

// The values of a group of a panel, where ScaledPanels has them.
GgufGroup group_of(const ScaledPanels& panels, const std::byte* panel, int64_t group) {
  const WeightFormat format = panels.format;
  const int64_t num_groups = panels.k / format.group_cols;
  const int64_t num_blocks = panels.k / format.block_cols;
  const int64_t block = group * format.group_cols / format.block_cols;
  const auto* const factors = reinterpret_cast<const uint8_t*>(panel + panels.numbers_bytes);
  const uint8_t* const minima = factors + num_groups * kPanelRows;
  const auto* const scales = reinterpret_cast<const uint16_t*>(
      format.has_minima ? minima + num_groups * kPanelRows : minima);
  GgufGroup values{.factors = reinterpret_cast<const int8_t*>(factors + group * kPanelRows),
                   .scales = scales + block * kPanelRows};
  if (format.has_minima) {
    values.minima = minima + group * kPanelRows;
    values.min_scales = scales + (num_blocks + block) * kPanelRows;
  }
  return values;
}

void convert(const ScaledPanels& panels, const std::byte* panel, const Slice& slice,
             const MatmulKernel& kernel, uint16_t* to) {
  const bool is_4 = panels.format.numbers == WeightNumbers::kGguf4;
  const auto run = is_4 ? kernel.convert_gguf4 : kernel.convert_gguf8;
  const int64_t group_cols = panels.format.group_cols;
  const auto* const numbers = reinterpret_cast<const uint8_t*>(panel);
  const int64_t end = slice.begin + slice.count;
  for (int64_t column = slice.begin; column < end; column += group_cols) {
    run(numbers + column * kPanelRows / (is_4 ? 2 : 1),
        group_of(panels, panel, column / group_cols), group_cols / 2,
        to + (column - slice.begin) * kPanelRows);
  }
}

// A slice as a product of its own, whose sums go on from those of the slices before.
void multiply_slice(const MatmulProblem& problem, const MatmulJob& job, const Slice& slice,
                    const MatmulKernel& kernel, const Scratch& at) {
  const int64_t n = job.num_panels * kPanelRows;
  for (int64_t row = 0; row < job.num_rows; row += kernel.max_rows) {
    const int64_t num_rows = std::min(kernel.max_rows, job.num_rows - row);
    const MatmulProblem product{
        .x = problem.x + (job.row_begin + row) * problem.x_stride + slice.begin,
        .x_stride = problem.x_stride,
        .weight = at.weight,
        .out = at.sums + row * n,
        .out_is_f32 = true,
        .adds = slice.begin > 0,
        .m = num_rows,
        .n = n,
        .k = slice.count,
        .padded_k = slice.count};
    kernel.run(product, {.num_rows = num_rows, .num_panels = job.num_panels}, at.of_kernel);
  }
}

void run_panels(const MatmulProblem& problem, const ScaledPanels& panels, const MatmulJob& job,
                const MatmulKernel& kernel, const Scratch& at) {
  const std::byte* const first = panels.data + job.panel_begin * panels.panel_bytes;
  const int64_t most = job.num_rows <= kFewRows ? kFewCols : kSliceCols;
  for (Slice slice; slice.begin < panels.k; slice.begin += slice.count) {
    slice.count = std::min(most, panels.k - slice.begin);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      convert(panels, first + panel * panels.panel_bytes, slice, kernel,
              at.weight + panel * slice.count * kPanelRows);
    }
    multiply_slice(problem, job, slice, kernel, at);
  }
  write_job(problem, job, at.sums, job.num_panels * kPanelRows);
}

}  // namespace

size_t gguf_scratch_bytes(const MatmulKernel& kernel) {
  return static_cast<size_t>(num_slice_numbers(kernel)) * sizeof(uint16_t) +
         static_cast<size_t>(num_sums(kernel)) * sizeof(float) + kernel.scratch_bytes;
}

void run_gguf_job(const MatmulProblem& problem, const ScaledPanels& panels, const MatmulJob& job,
                  const MatmulKernel& kernel, std::byte* scratch) {
  const Scratch at = cut(kernel, scratch);
  const int64_t most = job.num_rows <= kFewRows ? kFewPanels : job.num_panels;
  MatmulJob part = job;
  const int64_t end = job.panel_begin + job.num_panels;
  for (; part.panel_begin < end; part.panel_begin += part.num_panels) {
    part.num_panels = std::min(most, end - part.panel_begin);
    run_panels(problem, panels, part, kernel, at);
  }
}

}  // namespace sluice::cpu
