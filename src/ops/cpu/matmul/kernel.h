// The border between the driver of the matrix product and its kernels, one kernel per ISA.
//
// Used by ops/cpu/matmul/matmul.cc (which splits a product into jobs) and the matmul/<isa>.cc
// files. Each of those is compiled with flags of its own, so they include only this file,
// <immintrin.h> and code in unnamed namespaces: an inline function compiled for AVX-512 must never
// be the copy that the linker keeps for the rest of the program. Thread rule: kernels are
// stateless; every thread passes its own scratch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// Packed layout, the same for every ISA: bf16 in panels of 16 out features,
//   [num_panels][padded_k / 2][16 out features][2 in features]   padding is zero
// One 64-byte line holds an even and the next odd k of a panel: AMX takes it as it is; AVX2 and
// AVX-512 get the even k by a shift and the odd k by a mask, since bf16 is the upper half of f32.
inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kPaddedKMultiple = 32;  // one AMX tile row

// One product out[m, n] = x[m, k] * weight[n, k]^T + bias[n].
struct MatmulProblem {
  const uint16_t* x = nullptr;  // bf16 [m, k], rows x_stride apart
  int64_t x_stride = 0;
  const uint16_t* weight = nullptr;  // packed
  const uint16_t* bias = nullptr;    // bf16 [n] or null
  void* out = nullptr;               // f32 or bf16 [m, n]
  bool out_is_f32 = false;
  bool adds = false;  // sums go on from those in out
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t padded_k = 0;
};

// Rows [row_begin, row_begin + num_rows) of panels [panel_begin, panel_begin + num_panels).
struct MatmulJob {
  int64_t row_begin = 0;
  int64_t num_rows = 0;
  int64_t panel_begin = 0;
  int64_t num_panels = 0;
};

// The values of a group of columns of GGUF's blocks, for the 16 rows of a panel; scales are the
// bits of f16.
struct GgufGroup {
  const int8_t* factors = nullptr;
  const uint8_t* minima = nullptr;  // null, and min_scales, of a format without
  const uint16_t* scales = nullptr;
  const uint16_t* min_scales = nullptr;
};

// REQUIRES of run: num_rows <= max_rows, num_panels <= max_panels, 64-byte aligned scratch; with
// `adds` out is f32 of whole panels, without bias.
// Order of accumulation: a kernel visits k of each output element in one order that depends on k
// alone, never on the job. A row is therefore independent of its neighbours. It is one chain, so a
// product that is cut at a multiple of kPaddedKMultiple and goes on with `adds` has the same bits.
struct MatmulKernel {
  int64_t max_rows = 0;        // of a job: bounds the scratch
  int64_t max_panels = 0;      // of a job
  int64_t row_multiple = 1;    // heights of jobs that waste nothing
  int64_t panel_multiple = 1;  // widths of jobs that waste nothing
  size_t scratch_bytes = 0;
  void (*run)(const MatmulProblem& problem, const MatmulJob& job, std::byte* scratch) = nullptr;
  // Lines of a panel of integers, less the zero points u8 [16] of its rows, to lines of bf16.
  using Convert = void (*)(const uint8_t* from, const uint8_t* zeros, int64_t num_lines,
                           uint16_t* to);
  Convert convert_uint4 = nullptr;
  Convert convert_uint8 = nullptr;
  // Lines of a panel whose columns are of one group of GGUF's blocks, to lines of the bf16 that
  // their codes stand for.
  using ConvertGguf = void (*)(const uint8_t* from, const GgufGroup& group, int64_t num_lines,
                               uint16_t* to);
  ConvertGguf convert_gguf4 = nullptr;
  ConvertGguf convert_gguf8 = nullptr;
};

// REQUIRES of each: the CPU has its ISA. AVX2 and AVX-512 give equal bits; scalar and AMX differ.
const MatmulKernel& matmul_kernel_scalar();
const MatmulKernel& matmul_kernel_avx2();
const MatmulKernel& matmul_kernel_avx512();
const MatmulKernel& matmul_kernel_amx();

// Conversions of matmul_kernel_avx512 where the CPU has AVX-512-BF16; the same bits.
void convert_gguf4_avx512bf16(const uint8_t* from, const GgufGroup& group, int64_t num_lines,
                              uint16_t* to);
void convert_gguf8_avx512bf16(const uint8_t* from, const GgufGroup& group, int64_t num_lines,
                              uint16_t* to);

}  // namespace sluice
