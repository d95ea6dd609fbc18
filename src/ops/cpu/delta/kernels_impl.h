// The inner loops of the gated delta rule, for vectors of kDeltaLanes numbers.
//
// Included by the delta/kernels_<isa>.cc files only, which define kDeltaLanes; each gets its own
// copy (hence the unnamed namespace). The build forbids fused multiply-add here. A column of S is
// computed alone and in one order whatever the width of a vector, and other sums have 16 partial
// sums: both keep the bits independent of the ISA. Thread rule: pure functions.
#pragma once

#include "ops/cpu/delta/kernels.h"
#include "ops/cpu/scalar_math.h"

namespace sluice {
namespace {

using cpu::bf16_to_float;
using cpu::round_to_bf16;

// GCC and Clang lower operators on it to the instructions of the file's ISA. Of unaligned memory.
typedef float DeltaVector
    __attribute__((vector_size(kDeltaLanes * sizeof(float)), aligned(alignof(float)), may_alias));

DeltaVector load(const float* at) { return *reinterpret_cast<const DeltaVector*>(at); }
void store(float* at, DeltaVector value) { *reinterpret_cast<DeltaVector*>(at) = value; }

// Element i goes to partial sum i mod 16.
float sum_of_squares(const float* x, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] += x[i + l] * x[i + l];
  }
  for (; i < n; ++i) lanes[i % 16] += x[i] * x[i];
  return cpu::sum_lanes(lanes);
}

// In parts that stay in the first cache, since each tap reads and writes all of `out`.
void conv_row(const ConvRow& row) {
  constexpr int64_t kPart = 1024;
  for (int64_t begin = 0; begin < row.num_channels; begin += kPart) {
    const int64_t left = row.num_channels - begin;
    const int64_t n = left < kPart ? left : kPart;
    float* __restrict out = row.out + begin;
    for (int64_t c = 0; c < n; ++c) out[c] = 0.0f;
    for (int64_t j = 0; j < row.num_taps; ++j) {
      if (row.inputs[j] == nullptr) continue;
      const uint16_t* __restrict x = row.inputs[j] + begin;
      const float* __restrict taps = row.taps + j * row.num_channels + begin;
      for (int64_t c = 0; c < n; ++c) out[c] += taps[c] * bf16_to_float(x[c]);
    }
    for (int64_t c = 0; c < n; ++c) out[c] = out[c] / (1.0f + fast_exp(-out[c]));
  }
}

void normalize_row(const float* x, float* out, int64_t n, float scale) {
  constexpr float kEps = 1e-6f;
  const float factor = scale / __builtin_sqrtf(sum_of_squares(x, n) + kEps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

// Columns [column, column + kVectors * kDeltaLanes) of a step. S is read twice and written once;
// the sums stay in registers. What stores may alias is read before, or it would be read again each
// time.
template <int kVectors>
void step_columns(const DeltaStep& step, int64_t column) {
  const int64_t k_dim = step.k_dim, stride = step.num_columns;
  const float* const q = step.q;
  const float* const k = step.k;
  const float decay = step.decay;
  DeltaVector seen[kVectors] = {};
  const float* row = step.from + column;
  for (int64_t i = 0; i < k_dim; ++i, row += stride) {
    for (int j = 0; j < kVectors; ++j) seen[j] += load(row + j * kDeltaLanes) * decay * k[i];
  }
  DeltaVector delta[kVectors], sum[kVectors] = {};
  for (int j = 0; j < kVectors; ++j) {
    delta[j] = (load(step.v + column + j * kDeltaLanes) - seen[j]) * step.beta;
  }
  row = step.from + column;
  float* to = step.to + column;
  for (int64_t i = 0; i < k_dim; ++i, row += stride, to += stride) {
    for (int j = 0; j < kVectors; ++j) {
      const DeltaVector s = load(row + j * kDeltaLanes) * decay + delta[j] * k[i];
      store(to + j * kDeltaLanes, s);
      sum[j] += s * q[i];
    }
  }
  for (int j = 0; j < kVectors; ++j) store(step.out + column + j * kDeltaLanes, sum[j]);
}

// The same for one column that fills no vector.
void step_column(const DeltaStep& step, int64_t column) {
  const int64_t stride = step.num_columns;
  float seen = 0.0f, sum = 0.0f;
  for (int64_t i = 0; i < step.k_dim; ++i) {
    seen += step.from[i * stride + column] * step.decay * step.k[i];
  }
  const float delta = (step.v[column] - seen) * step.beta;
  for (int64_t i = 0; i < step.k_dim; ++i) {
    const float s = step.from[i * stride + column] * step.decay + delta * step.k[i];
    step.to[i * stride + column] = s;
    sum += s * step.q[i];
  }
  step.out[column] = sum;
}

void step_block(const DeltaStep& step) {
  constexpr int kVectors = 4;
  const int64_t n = step.num_columns;
  int64_t column = 0;
  for (; column + kVectors * kDeltaLanes <= n; column += kVectors * kDeltaLanes) {
    step_columns<kVectors>(step, column);
  }
  for (; column + kDeltaLanes <= n; column += kDeltaLanes) step_columns<1>(step, column);
  for (; column < n; ++column) step_column(step, column);
}

void gated_norm_head(const GatedNormHead& head) {
  const float mean = sum_of_squares(head.x, head.dim) / static_cast<float>(head.dim);
  const float scale = 1.0f / __builtin_sqrtf(mean + head.eps);
  for (int64_t i = 0; i < head.dim; ++i) {
    const float gate = bf16_to_float(head.gate[i]);
    const float normed = head.weight[i] * (head.x[i] * scale);
    head.out[i] = round_to_bf16(normed * (gate / (1.0f + fast_exp(-gate))));
  }
}

void sigmoid_gate_row(uint16_t* __restrict x, const uint16_t* __restrict gate, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = round_to_bf16(bf16_to_float(x[i]) * fast_sigmoid(bf16_to_float(gate[i])));
  }
}

constexpr DeltaKernels kKernels = {.conv = &conv_row,
                                   .normalize = &normalize_row,
                                   .step = &step_block,
                                   .gated_norm = &gated_norm_head,
                                   .sigmoid_gate = &sigmoid_gate_row};

}  // namespace
}  // namespace sluice
