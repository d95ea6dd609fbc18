// The parts of a matrix-product kernel around its inner loop: bf16 to f32, and sums plus bias to
// the output.
//
// Included by the matmul/<isa>.cc files only, some through matmul/fma.h; each gets its own copy,
// compiled for its ISA (hence the unnamed namespace in a header; see matmul/kernel.h). Thread rule:
// pure functions.
#pragma once

#include <cstring>

#include "ops/cpu/matmul/kernel.h"

namespace sluice {
namespace {

// Exact: bf16 is the upper half of f32.
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

// Eight values in the compiler's own vector type: GCC leaves loops over scalars scalar here, which
// would slow the AMX kernel down, and GCC 12 splits vectors of sixteen badly on AVX2.
inline constexpr int64_t kWriteLanes = 8;
using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));
using Halves = uint16_t __attribute__((vector_size(16)));

// Columns from those that a conversion reads to those that it prefetches. A job takes 128 columns
// of each of its panels in turn: 1 or 2 KiB from one place, which no prefetcher of the hardware
// follows. It may name an address past the weight.
inline constexpr int64_t kConvertAhead = 256;

// Through memcpy, since bias and output have no alignment.
template <typename Vector, typename Memory>
inline void load_vector(Vector& vector, const Memory* memory) {
  std::memcpy(&vector, memory, sizeof(vector));
}

// narrow() of eight values.
inline void store_narrow(const Floats& values, uint16_t* out) {
  const Words raw = reinterpret_cast<Words>(values);
  const Words rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  const Words quiet = (raw >> 16) | 0x0040u;
  const Words result = (raw & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  const Halves halves = __builtin_convertvector(result, Halves);
  std::memcpy(out, &halves, sizeof(halves));
}

// Eight sums of one row, plus bias, to out.
inline void write_lanes(const MatmulProblem& problem, int64_t row, int64_t column,
                        const float* sums) {
  Floats values;
  load_vector(values, sums);
  if (problem.bias != nullptr) {
    Halves bias;
    load_vector(bias, problem.bias + column);
    const Words wide = __builtin_convertvector(bias, Words) << 16;
    values += reinterpret_cast<Floats>(wide);
  }
  const int64_t offset = row * problem.n + column;
  if (problem.out_is_f32) {
    std::memcpy(static_cast<float*>(problem.out) + offset, &values, sizeof(values));
  } else {
    store_narrow(values, static_cast<uint16_t*>(problem.out) + offset);
  }
}

// write_lanes for `count` sums, one by one: the end of a row when n is no multiple of 16.
inline void write_tail(const MatmulProblem& problem, int64_t row, int64_t column, int64_t count,
                       const float* sums) {
  const int64_t offset = row * problem.n + column;
  for (int64_t i = 0; i < count; ++i) {
    float value = sums[i];
    if (problem.bias != nullptr) value += widen(problem.bias[column + i]);
    if (problem.out_is_f32) {
      static_cast<float*>(problem.out)[offset + i] = value;
    } else {
      static_cast<uint16_t*>(problem.out)[offset + i] = narrow(value);
    }
  }
}

// Sixteen sums of one row and panel, plus bias, to out.
inline void write_panel_row(const MatmulProblem& problem, int64_t row, int64_t panel,
                            const float* sums) {
  const int64_t column = panel * kPanelRows;
  const int64_t left = problem.n - column;
  if (left >= kPanelRows) {
    write_lanes(problem, row, column, sums);
    write_lanes(problem, row, column + kWriteLanes, sums + kWriteLanes);
  } else {
    write_tail(problem, row, column, left, sums);
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
