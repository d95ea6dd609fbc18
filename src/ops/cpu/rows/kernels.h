// The border between the element-wise ops of a row and their inner loops, one set per ISA.
//
// Used by norm.cc, rope.cc, activation.cc and sample/stats.cc; the rows/kernels_<isa>.cc files are
// compiled with flags of their own (matmul/kernel.h says what they may include). All sets are the
// same plain multiplications and additions in the same order, so they give the same bits. bf16 is
// passed as its bits. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {

enum class CpuIsa;

// One head of a row: x, out [head_dim]; norm_weight [head_dim] or null; cos_sin [2, head_dim / 2].
struct RopeHead {
  const uint16_t* x = nullptr;
  const uint16_t* norm_weight = nullptr;
  const float* cos_sin = nullptr;
  uint16_t* out = nullptr;  // must not overlap x
  int64_t head_dim = 0;
  int64_t norm_channels = 0;  // of the norm's mean; the others are zeros
  float eps = 0.0f;
  float norm_offset = 0.0f;  // added to norm_weight
};

// One set of inner loops; each function works on one row, or one head of it.
struct RowKernels {
  // residual[n] = bf16(residual + x).
  void (*add)(const uint16_t* x, uint16_t* residual, int64_t n);
  // out[n] = weight * row / rms(row); `row` may be `out`.
  void (*norm)(const uint16_t* row, const uint16_t* weight, uint16_t* out, int64_t n, float eps);
  // The same with `offset` added to the weight.
  void (*offset_norm)(const uint16_t* row, const uint16_t* weight, uint16_t* out, int64_t n,
                      float eps, float offset);
  // out[n] = gate * sigmoid(gate) * up. No aliasing.
  void (*swiglu)(const uint16_t* gate, const uint16_t* up, uint16_t* out, int64_t n);
  // out = rope(norm(x)); without a norm weight rope(x).
  void (*rope)(const RopeHead& head);
  // The sum of e^(logits[i] - largest): element i goes to partial sum i mod 16.
  float (*sum_exp)(const float* logits, int64_t n, float largest);
};

// Bounds the stack array of `rope`, which then needs no scratch.
inline constexpr int64_t kMaxRopeHeadDim = 1024;

// REQUIRES of each: the CPU has its ISA. `row_kernels` chooses for `isa`; there is no AMX set,
// since these loops are bound by memory.
const RowKernels& row_kernels_portable();
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();
const RowKernels& row_kernels(CpuIsa isa);

}  // namespace sluice
