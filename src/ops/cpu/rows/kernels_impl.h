// The inner loops of the element-wise ops, which the compiler turns into vectors of its file's ISA.
//
// Included by the rows/kernels_<isa>.cc files only; each gets its own copy (hence the unnamed
// namespace). The build forbids fused multiply-add here, and sums have 16 partial sums at every
// vector width: both keep the bits independent of the ISA. Thread rule: pure functions.
#pragma once

#include "ops/cpu/rows/kernels.h"
#include "ops/cpu/scalar_math.h"

namespace sluice {
namespace {

using cpu::bf16_to_float;
using cpu::round_to_bf16;

// The sum of squares of `n` bf16 numbers in f32: element i goes to partial sum i mod 16.
float sum_of_squares(const uint16_t* x, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) {
      const float value = bf16_to_float(x[i + l]);
      lanes[l] += value * value;
    }
  }
  for (; i < n; ++i) {
    const float value = bf16_to_float(x[i]);
    lanes[i % 16] += value * value;
  }
  return cpu::sum_lanes(lanes);
}

// 1 / sqrt(mean(x^2) + eps). The sum is over n elements, the mean divides by `num_channels`: the
// other channels are zeros.
float norm_scale(const uint16_t* x, int64_t n, int64_t num_channels, float eps) {
  return 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(num_channels) + eps);
}

// `residual` is rounded to bf16 here, so that the norm after it reads the rounded sum.
void add_row(const uint16_t* __restrict x, uint16_t* __restrict residual, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    residual[i] = round_to_bf16(bf16_to_float(residual[i]) + bf16_to_float(x[i]));
  }
}

// In place is allowed: all of the row is read for the scale before the first write.
void norm_row(const uint16_t* row, const uint16_t* weight, uint16_t* out, int64_t n, float eps) {
  const float scale = norm_scale(row, n, n, eps);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = round_to_bf16(bf16_to_float(weight[i]) * (bf16_to_float(row[i]) * scale));
  }
}

void offset_norm_row(const uint16_t* row, const uint16_t* weight, uint16_t* out, int64_t n,
                     float eps, float offset) {
  const float scale = norm_scale(row, n, n, eps);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = round_to_bf16((offset + bf16_to_float(weight[i])) * (bf16_to_float(row[i]) * scale));
  }
}

// silu(x) * up with silu(x) = x / (1 + e^-x).
void swiglu_row(const uint16_t* __restrict gate, const uint16_t* __restrict up,
                uint16_t* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = bf16_to_float(gate[i]);
    out[i] = round_to_bf16(x / (1.0f + fast_exp(-x)) * bf16_to_float(up[i]));
  }
}

// (low, high) becomes (low cos - high sin, high cos + low sin) for each pair (i, i + half).
void rope_head(const RopeHead& head) {
  float values[kMaxRopeHeadDim];
  const int64_t half = head.head_dim / 2;
  for (int64_t i = 0; i < head.head_dim; ++i) values[i] = bf16_to_float(head.x[i]);
  if (head.norm_weight != nullptr) {
    const float scale = norm_scale(head.x, head.head_dim, head.norm_channels, head.eps);
    // -0 + w is w, also where that is -0: without an offset the weight keeps its bits.
    const float offset = head.norm_offset == 0.0f ? -0.0f : head.norm_offset;
    for (int64_t i = 0; i < head.head_dim; ++i) {
      values[i] = (offset + bf16_to_float(head.norm_weight[i])) * (values[i] * scale);
    }
  }
  const float* __restrict cosines = head.cos_sin;
  const float* __restrict sines = head.cos_sin + half;
  uint16_t* __restrict out = head.out;
  for (int64_t i = 0; i < half; ++i) {
    const float low = values[i];
    const float high = values[i + half];
    out[i] = round_to_bf16(low * cosines[i] - high * sines[i]);
    out[i + half] = round_to_bf16(high * cosines[i] + low * sines[i]);
  }
}

// Terms are at most 1, since `largest` is the maximum of the whole row.
float sum_exp_row(const float* logits, int64_t n, float largest) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] += fast_exp(logits[i + l] - largest);
  }
  for (; i < n; ++i) lanes[i % 16] += fast_exp(logits[i] - largest);
  return cpu::sum_lanes(lanes);
}

constexpr RowKernels kKernels = {.add = &add_row,
                                 .norm = &norm_row,
                                 .offset_norm = &offset_norm_row,
                                 .swiglu = &swiglu_row,
                                 .rope = &rope_head,
                                 .sum_exp = &sum_exp_row};

}  // namespace
}  // namespace sluice
