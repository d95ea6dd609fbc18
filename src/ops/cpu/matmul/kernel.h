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

// The panels of a weight in GGUF's blocks, block by block, so that a product reads each as one
// stream: scales and min_scales, f16 [16 out features], factors and minima, i8 and u8 [groups][16],
// then the codes in the order of a panel. Without minima two of these are absent.
struct GgufPanels {
  const uint8_t* data = nullptr;
  int64_t panel_bytes = 0;
  int64_t block_bytes = 0;
  int64_t value_bytes = 0;  // of a block
  int64_t k = 0;
  int64_t group_cols = 0;
  int64_t block_cols = 0;
  bool has_minima = false;
  bool is_4 = false;  // bits of a code, else 8
};

// Computes a job of a problem whose `weight` is not read. REQUIRES and order of accumulation: as
// MatmulKernel; the same bits for every ISA but AMX.
struct GgufKernel {
  int64_t max_rows = 0;
  int64_t max_panels = 0;
  int64_t row_multiple = 1;
  int64_t panel_multiple = 1;
  size_t scratch_bytes = 0;
  void (*run)(const MatmulProblem& problem, const GgufPanels& panels, const MatmulJob& job,
              std::byte* scratch) = nullptr;
};

// REQUIRES of run: num_rows <= max_rows, num_panels <= max_panels, 64-byte aligned scratch.
// Order of accumulation: a kernel visits k of each output element in one order that depends on k
// alone, never on the job. A row is therefore independent of its neighbours.
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
  // Likewise of a panel of e4m3, without scales.
  using ConvertE4m3 = void (*)(const uint8_t* from, int64_t num_lines, uint16_t* to);
  ConvertE4m3 convert_e4m3 = nullptr;
  GgufKernel gguf = {};
};

// REQUIRES of each: the CPU has its ISA. AVX2 and AVX-512 give equal bits; scalar and AMX differ.
const MatmulKernel& matmul_kernel_scalar();
const MatmulKernel& matmul_kernel_avx2();
const MatmulKernel& matmul_kernel_avx512();
const MatmulKernel& matmul_kernel_amx();
// The parts for GGUF's blocks of the last, and of matmul_kernel_avx512 for a CPU with AVX-512-VNNI.
const GgufKernel& gguf_kernel_amx();
const GgufKernel& gguf_kernel_avx512vnni();

}  // namespace sluice
