// What every matrix-product kernel does around its inner loop: bf16 to f32, and the last step.
//
// Included by the matmul_<isa>.cc files only; each gets its own copy, compiled for its ISA (hence
// the unnamed namespace in a header; see matmul_kernel.h). Thread rule: pure functions.
#pragma once

#include <cstring>

#include "ops/cpu/matmul_kernel.h"

namespace sluice {
namespace {

inline float widen(uint16_t bits) {
  const uint32_t raw = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &raw, sizeof(value));
  return value;
}

// Rounds to nearest even; a NaN stays a quiet NaN. The same function as BFloat16(float).
inline uint16_t narrow(float value) {
  uint32_t raw;
  std::memcpy(&raw, &value, sizeof(raw));
  const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  const bool is_nan = (raw & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? ((raw >> 16) | 0x0040u) : rounded);
}

// Sixteen sums of one row and panel, plus bias, to out.
inline void write_panel_row(const MatmulProblem& problem, int64_t row, int64_t panel,
                            const float* sums) {
  const int64_t column = panel * kPanelRows;
  const int64_t left = problem.n - column;
  float values[kPanelRows];
  for (int64_t i = 0; i < kPanelRows; ++i) values[i] = sums[i];
  const int64_t count = left < kPanelRows ? left : kPanelRows;
  if (problem.bias != nullptr) {
    for (int64_t i = 0; i < count; ++i) values[i] += widen(problem.bias[column + i]);
  }
  const int64_t offset = row * problem.n + column;
  if (problem.out_is_f32) {
    std::memcpy(static_cast<float*>(problem.out) + offset, values,
                static_cast<size_t>(count) * sizeof(float));
  } else {
    uint16_t rounded[kPanelRows];
    for (int64_t i = 0; i < kPanelRows; ++i) rounded[i] = narrow(values[i]);
    std::memcpy(static_cast<uint16_t*>(problem.out) + offset, rounded,
                static_cast<size_t>(count) * sizeof(uint16_t));
  }
}

// The sums of a job to out. `sums` is [num_rows][stride], panel p of the job at column 16 p.
inline void write_job(const MatmulProblem& problem, const MatmulJob& job, const float* sums,
                      int64_t stride) {
  for (int64_t row = 0; row < job.num_rows; ++row) {
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      write_panel_row(problem, job.row_begin + row, job.panel_begin + panel,
                      sums + row * stride + panel * kPanelRows);
    }
  }
}

}  // namespace
}  // namespace sluice
