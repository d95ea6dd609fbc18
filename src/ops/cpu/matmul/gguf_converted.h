// Jobs with weights in GGUF's blocks for a kernel of bf16: slices of the panels become the bf16
// that their codes stand for, and the kernel goes on with the sums of the slices before. So a
// product has the bits of that with the same numbers in bf16.
//
// Included by matmul/amx.cc only: AMX multiplies bf16 so much faster than AVX-512 integers that
// with many rows conversion costs little. With few rows it is most of the time. Thread rule: pure
// functions over the caller's scratch.
#pragma once

#include "ops/cpu/matmul/gguf.h"
#include "ops/cpu/matmul/gguf_avx512.h"

namespace sluice {
namespace {

// Rows of a job, in jobs of the kernel: to convert a number takes longer than to multiply it by a
// few rows.
inline constexpr int64_t kGgufRowBlocks = 4;

// Lines of a panel whose columns are of one group to lines of bf16. The product of step and code
// has at most 24 bits in all types of GGUF, so it is exact, and the difference is rounded once.
template <int kBits>
void convert_gguf_avx512(const uint8_t* from, const GgufSteps& of_group, int64_t num_lines,
                         uint16_t* to) {
  // The instruction puts one operand's numbers after the other's. It takes subnormal numbers for 0,
  // and there are none: all are multiples of 2^-24, the smallest step of a scale.
  alignas(64) static constexpr uint16_t kInPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i in_pairs = _mm512_load_si512(kInPairs);
  const __m512 steps = _mm512_load_ps(of_group.steps);
  const __m512 offsets = _mm512_load_ps(of_group.offsets);
  const auto value_of = [&](__m512i codes) {
    return _mm512_fmsub_ps(_mm512_cvtepi32_ps(codes), steps, offsets);
  };
  for (int64_t line = 0; line < num_lines; ++line, to += 2 * kPanelRows) {
    __m512i evens;
    __m512i odds;
    if constexpr (kBits == 4) {
      const __m512i pairs = load_nibble_pairs(from + line * kPanelRows);
      evens = _mm512_and_si512(pairs, _mm512_set1_epi32(15));
      odds = _mm512_srli_epi32(pairs, 4);
    } else {
      const __m512i pairs = _mm512_cvtepi16_epi32(load_byte_pairs(from + line * kPanelRows * 2));
      evens = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24);
      odds = _mm512_srai_epi32(pairs, 8);
    }
    const auto halves = (__m512i)_mm512_cvtne2ps_pbh(value_of(odds), value_of(evens));
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(in_pairs, halves));
  }
}
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Jobs of few rows take slices that stay in L1: 32 KiB.
inline constexpr int64_t kFewRows = 16;
inline constexpr int64_t kFewPanels = 8;
inline constexpr int64_t kFewCols = 128;
inline constexpr int64_t kSliceCols = 512;

// Columns of a slice are a multiple of this many, more than any group has.
inline constexpr int64_t kMostGroupCols = 128;
static_assert(kFewCols % kMostGroupCols == 0 && kSliceCols % kMostGroupCols == 0);

struct GgufScratch {
  uint16_t* weight = nullptr;  // [panels][slice columns / 2][16][2]
  float* sums = nullptr;       // [rows][panels * 16]
  std::byte* of_kernel = nullptr;
};

constexpr int64_t num_sums(const MatmulKernel& kernel) {
  return kGgufRowBlocks * kernel.max_rows * kernel.max_panels * kPanelRows;
}

constexpr int64_t num_slice_numbers(const MatmulKernel& kernel) {
  return kernel.max_panels * kPanelRows * kSliceCols;
}

GgufScratch cut(const MatmulKernel& kernel, std::byte* scratch) {
  GgufScratch cut;
  cut.weight = reinterpret_cast<uint16_t*>(scratch);
  cut.sums = reinterpret_cast<float*>(cut.weight + num_slice_numbers(kernel));
  cut.of_kernel = reinterpret_cast<std::byte*>(cut.sums + num_sums(kernel));
  return cut;
}

struct Slice {
  int64_t begin = 0;
  int64_t count = 0;  // of columns
};

void convert_slice(const GgufPanels& panels, const uint8_t* panel, const Slice& slice,
                   uint16_t* to) {
  const auto convert = panels.is_4 ? &convert_gguf_avx512<4> : &convert_gguf_avx512<8>;
  const int64_t group_cols = panels.group_cols;
  const int64_t end = slice.begin + slice.count;
  for (int64_t column = slice.begin; column < end; column += group_cols) {
    GgufSteps steps;
    const GroupPlace place(panels, column);
    read_steps_avx512(place.of(panel), steps);
    convert(panel + place.codes, steps, group_cols / 2, to + (column - slice.begin) * kPanelRows);
  }
}

// A slice as a product of its own, whose sums go on from those of the slices before.
void multiply_slice(const MatmulProblem& problem, const MatmulJob& job, const Slice& slice,
                    const MatmulKernel& kernel, const GgufScratch& at) {
  const int64_t n = job.num_panels * kPanelRows;
  for (int64_t row = 0; row < job.num_rows; row += kernel.max_rows) {
    const int64_t num_rows = least(kernel.max_rows, job.num_rows - row);
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

void run_panels(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
                const MatmulKernel& kernel, const GgufScratch& at) {
  const uint8_t* const first = panels.data + job.panel_begin * panels.panel_bytes;
  const int64_t most = job.num_rows <= kFewRows ? kFewCols : kSliceCols;
  for (Slice slice; slice.begin < panels.k; slice.begin += slice.count) {
    slice.count = least(most, panels.k - slice.begin);
    for (int64_t panel = 0; panel < job.num_panels; ++panel) {
      convert_slice(panels, first + panel * panels.panel_bytes, slice,
                    at.weight + panel * slice.count * kPanelRows);
    }
    multiply_slice(problem, job, slice, kernel, at);
  }
  write_job(problem, job, at.sums, job.num_panels * kPanelRows);
}

constexpr size_t converted_scratch_bytes(const MatmulKernel& kernel) {
  return static_cast<size_t>(num_slice_numbers(kernel)) * sizeof(uint16_t) +
         static_cast<size_t>(num_sums(kernel)) * sizeof(float) + kernel.scratch_bytes;
}

// The contract of GgufKernel::run.
void run_converted(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
                   const MatmulKernel& kernel, std::byte* scratch) {
  const GgufScratch at = cut(kernel, scratch);
  const int64_t most = job.num_rows <= kFewRows ? kFewPanels : job.num_panels;
  MatmulJob part = job;
  const int64_t end = job.panel_begin + job.num_panels;
  for (; part.panel_begin < end; part.panel_begin += part.num_panels) {
    part.num_panels = least(most, end - part.panel_begin);
    run_panels(problem, panels, part, kernel, at);
  }
}

}  // namespace
}  // namespace sluice
