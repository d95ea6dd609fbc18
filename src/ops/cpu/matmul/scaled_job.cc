// Converts slices of up to 128 columns, multiplies them with the kernel of the ISA, and adds their
// sums.
//
// With few rows a conversion has more instructions than the product, so each ISA has its own
// (matmul/integers.h, matmul/e4m3_lines.h).
#include "ops/cpu/matmul/scaled_job.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/matmul/block.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kSliceCols = kScaleGroup;
// Numbers of a panel in a slice.
constexpr int64_t kSliceNumbers = kSliceCols * kPanelRows;
// Of jobs of up to kFewRows rows: their slices have 32 KiB.
constexpr int64_t kFewRows = 16;
constexpr int64_t kFewPanels = 8;

// Where a job keeps what: slices of its panels in bf16, their sums, the sums of all slices, and the
// columns of x that belong to a slice where those of the weight have another order.
struct Scratch {
  uint16_t* weight = nullptr;  // [panels][slice columns / 2][16][2]
  float* slice_sums = nullptr;
  float* sums = nullptr;  // [rows][panels * 16], as slice_sums
  uint16_t* x = nullptr;  // [rows][kSliceCols]
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
  cut.x = reinterpret_cast<uint16_t*>(cut.sums + num_sums(kernel));
  cut.of_kernel = reinterpret_cast<std::byte*>(cut.x + kernel.max_rows * kSliceCols);
  return cut;
}

// Columns [begin, begin + padded) of the weight, all of one group.
struct Slice {
  int64_t begin = 0;
  int64_t padded = 0;
  int64_t group = 0;
};

// A slice of one panel to bf16, without its scale.
void convert(const ScaledPanels& panels, const std::byte* panel, const Slice& slice,
             const MatmulKernel& kernel, uint16_t* to) {
  const auto* numbers = reinterpret_cast<const uint8_t*>(panel);
  const uint8_t* zeros =
      numbers + panels.numbers_bytes + panels.scales_bytes() + slice.group * kPanelRows;
  if (panels.format.numbers == WeightNumbers::kUint4) {
    kernel.convert_uint4(numbers + slice.begin * kPanelRows / 2, zeros, slice.padded / 2, to);
  } else if (panels.format.numbers == WeightNumbers::kUint8) {
    kernel.convert_uint8(numbers + slice.begin * kPanelRows, zeros, slice.padded / 2, to);
  } else {
    kernel.convert_e4m3(numbers + slice.begin * kPanelRows, slice.padded / 2, to);
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

// The columns of x that a slice multiplies, side by side.
void gather(const MatmulProblem& problem, const MatmulJob& job, const int32_t* order, int64_t count,
            uint16_t* to) {
  for (int64_t row = 0; row < job.num_rows; ++row, to += kSliceCols) {
    const uint16_t* x = problem.x + (job.row_begin + row) * problem.x_stride;
    for (int64_t i = 0; i < count; ++i) to[i] = x[order[i]];
  }
}

// A slice as a product of its own: whole panels, so that no tail is cut off, without bias, in f32.
void multiply_slice(const MatmulProblem& problem, const MatmulJob& job, const Slice& slice,
                    const int32_t* order, const MatmulKernel& kernel, const Scratch& at) {
  const int64_t k = std::min(slice.padded, problem.k - slice.begin);
  if (order != nullptr) gather(problem, job, order + slice.begin, k, at.x);
  const uint16_t* const x =
      order != nullptr ? at.x : problem.x + job.row_begin * problem.x_stride + slice.begin;
  const MatmulProblem product{.x = x,
                              .x_stride = order != nullptr ? kSliceCols : problem.x_stride,
                              .weight = at.weight,
                              .out = at.slice_sums,
                              .out_is_f32 = true,
                              .m = job.num_rows,
                              .n = job.num_panels * kPanelRows,
                              .k = k,
                              .padded_k = slice.padded};
  kernel.run(product, {.num_rows = job.num_rows, .num_panels = job.num_panels}, at.of_kernel);
}

// A job whose panels have one order of columns.
void run_one_order(const MatmulProblem& problem, const ScaledPanels& panels, const MatmulJob& job,
                   const MatmulKernel& kernel, const Scratch& at) {
  const std::byte* const first = panels.data + job.panel_begin * panels.panel_bytes;
  const int32_t* const order = panels.order_of(job.panel_begin);
  const int64_t stride = job.num_panels * kPanelRows;
  std::fill(at.sums, at.sums + job.num_rows * stride, 0.0f);
  for (Slice slice; slice.begin < problem.padded_k; slice.begin += slice.padded) {
    slice.group = slice.begin / panels.group_cols;
    const int64_t group_end = std::min((slice.group + 1) * panels.group_cols, problem.padded_k);
    slice.padded = std::min(kSliceCols, group_end - slice.begin);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      convert(panels, first + panel * panels.panel_bytes, slice, kernel,
              at.weight + panel * slice.padded * kPanelRows);
    }
    multiply_slice(problem, job, slice, order, kernel, at);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      const auto* scales =
          reinterpret_cast<const float*>(first + panel * panels.panel_bytes + panels.numbers_bytes);
      add_scaled(at.slice_sums + panel * kPanelRows, scales + slice.group * kPanelRows,
                 job.num_rows, stride, at.sums + panel * kPanelRows);
    }
  }
  write_job(problem, job, at.sums, stride);
}

}  // namespace

// A backend's padding of columns adds no group, since groups are multiples of it.
ScaledPanels ScaledPanels::of(WeightFormat format, int64_t num_rows, int64_t k) {
  static_assert(kGroupMultiple % kPaddedKMultiple == 0);
  const int64_t padded_k = (k + kPaddedKMultiple - 1) / kPaddedKMultiple * kPaddedKMultiple;
  ScaledPanels panels{.format = format,
                      .group_cols = format.group_cols == 0 ? padded_k : format.group_cols,
                      .num_panels = (num_rows + kPanelRows - 1) / kPanelRows,
                      .k = k};
  panels.panel_bytes = static_cast<int64_t>(weight_bytes(format, kPanelRows, padded_k));
  panels.numbers_bytes = padded_k * kPanelRows;
  const bool is_4 =
      format.numbers == WeightNumbers::kUint4 || format.numbers == WeightNumbers::kGguf4;
  if (is_4) panels.numbers_bytes /= 2;
  return panels;
}

size_t ScaledPanels::num_bytes() const {
  if (format.num_orders == 0) return orders_offset();
  return orders_offset() + static_cast<size_t>(format.num_orders) * order_bytes(k) +
         static_cast<size_t>(num_panels) * sizeof(int32_t);
}

const int32_t* ScaledPanels::order_of(int64_t panel) const {
  if (format.num_orders == 0) return nullptr;
  const auto* orders = reinterpret_cast<const int32_t*>(data + orders_offset());
  return orders + orders[format.num_orders * k + panel] * k;
}

size_t scaled_scratch_bytes(const MatmulKernel& kernel) {
  return static_cast<size_t>(kernel.max_panels * kSliceNumbers) * sizeof(uint16_t) +
         static_cast<size_t>(2 * num_sums(kernel)) * sizeof(float) +
         static_cast<size_t>(kernel.max_rows * kSliceCols) * sizeof(uint16_t) +
         kernel.scratch_bytes;
}

// Neighbouring panels of different orders are jobs of their own: there are as many orders as
// matrices in one weight, so a job seldom has two. With few rows, slices that stay in L1 are worth
// more than rows of x that are read once.
void run_scaled_job(const MatmulProblem& problem, const ScaledPanels& panels, const MatmulJob& job,
                    const MatmulKernel& kernel, std::byte* scratch) {
  const Scratch at = cut(kernel, scratch);
  const int64_t end = job.panel_begin + job.num_panels;
  const int64_t most = job.num_rows <= kFewRows ? kFewPanels : job.num_panels;
  MatmulJob part = job;
  for (; part.panel_begin < end; part.panel_begin += part.num_panels) {
    const int32_t* const order = panels.order_of(part.panel_begin);
    part.num_panels = 1;
    while (part.num_panels < most && part.panel_begin + part.num_panels < end &&
           panels.order_of(part.panel_begin + part.num_panels) == order) {
      ++part.num_panels;
    }
    run_one_order(problem, panels, part, kernel, at);
  }
}

}  // namespace sluice::cpu
