// The matrix product with weights in e4m3 or in integers of 4 or 8 bits: a job converts up to 128
// columns of its panels to bf16, which is exact, and hands them to the kernel of the ISA.
//
// Used by ops/cpu/matmul/product.h. Thread rule: see matmul/kernel.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/matmul/kernel.h"
#include "ops/matmul/packed_weight.h"

namespace sluice::cpu {

// Packed layout of a panel: the numbers in the order of matmul/kernel.h, a byte or half a byte
// each, the even column in the lower half; then the scales, f32 [scales_per_row][16 out features];
// then the zero points of integers, u8 of the same shape. Padding is zero, in scales too. After the
// last panel come the orders of a format that has them, i32 [num_orders][k], and i32 [num_panels]:
// the order of each panel.
struct ScaledPanels {
  const std::byte* data = nullptr;
  WeightFormat format;
  int64_t group_cols = 0;  // columns that share a scale, a multiple of 32
  int64_t numbers_bytes = 0;
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  int64_t k = 0;

  // The layout of a weight [num_rows, k] of the format; `data` is not set.
  static ScaledPanels of(WeightFormat format, int64_t num_rows, int64_t k);

  int64_t scales_bytes() const { return k_groups() * kPanelRows * 4; }
  int64_t k_groups() const { return scales_per_row(format, k); }
  // Where the orders begin, and where the weight ends.
  size_t orders_offset() const { return static_cast<size_t>(num_panels * panel_bytes); }
  size_t num_bytes() const;

  // Of a format of GGUF's blocks, whose layout is that of GgufPanels.
  int64_t gguf_block_bytes() const { return panel_bytes / (k / format.block_cols); }
  GgufPanels gguf() const {
    return {.data = reinterpret_cast<const uint8_t*>(data),
            .panel_bytes = panel_bytes,
            .block_bytes = gguf_block_bytes(),
            .value_bytes = gguf_value_bytes(format, format.block_cols) * kPanelRows,
            .k = k,
            .group_cols = format.group_cols,
            .block_cols = format.block_cols,
            .has_minima = format.has_minima,
            .is_4 = format.numbers == WeightNumbers::kGguf4};
  }

  // The order of a panel's columns; null for that of x.
  const int32_t* order_of(int64_t panel) const;
};

// Scratch of run_scaled_job. It depends on the kernel alone.
size_t scaled_scratch_bytes(const MatmulKernel& kernel);

// Computes a job of `problem`, whose `weight` is not read.
// Order of accumulation: sums over up to 128 columns of a group in the kernel's order; each, times
// its scale, is added in ascending order of columns. A row is therefore independent of its
// neighbours.
// REQUIRES: as MatmulKernel::run.
void run_scaled_job(const MatmulProblem& problem, const ScaledPanels& panels, const MatmulJob& job,
                    const MatmulKernel& kernel, std::byte* scratch);

}  // namespace sluice::cpu
