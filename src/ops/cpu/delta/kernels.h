// The border between the ops of the gated delta rule and their inner loops, one set per ISA.
//
// Used by short_conv.cc, delta_rule.cc and gates.cc; the delta/kernels_<isa>.cc files are compiled
// with flags of their own (matmul/kernel.h says what they may include). All sets are the same plain
// multiplications and additions in the same order, so they give the same bits. bf16 is passed as
// its bits. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {

enum class CpuIsa;

// One row of the convolution.
struct ConvRow {
  const uint16_t* const* inputs = nullptr;  // bf16 [num_taps][num_channels]; a null row is zeros
  const float* taps = nullptr;              // [num_taps][num_channels]
  float* out = nullptr;                     // [num_channels]
  int64_t num_taps = 0;
  int64_t num_channels = 0;
};

// One row of some columns of one head.
struct DeltaStep {
  const float* from = nullptr;  // S [k_dim][num_columns] before the step
  float* to = nullptr;          // and after it; may be `from`
  const float* q = nullptr;     // [k_dim], normalised and scaled
  const float* k = nullptr;     // [k_dim], normalised
  const float* v = nullptr;     // [num_columns]
  float* out = nullptr;         // [num_columns]
  int64_t k_dim = 0;
  int64_t num_columns = 0;
  float decay = 0.0f;  // exp(g)
  float beta = 0.0f;
};

// One head of a row.
struct GatedNormHead {
  const float* x = nullptr;
  const uint16_t* gate = nullptr;
  const float* weight = nullptr;
  uint16_t* out = nullptr;
  int64_t dim = 0;
  float eps = 0.0f;
};

struct DeltaKernels {
  // out = silu(sum of taps * inputs).
  void (*conv)(const ConvRow& row);
  // out[n] = x * scale / sqrt(sum x^2 + 1e-6).
  void (*normalize)(const float* x, float* out, int64_t n, float scale);
  void (*step)(const DeltaStep& step);
  void (*gated_norm)(const GatedNormHead& head);
  // x[n] *= sigmoid(gate).
  void (*sigmoid_gate)(uint16_t* x, const uint16_t* gate, int64_t n);
};

// REQUIRES of each: the CPU has its ISA. `delta_kernels` chooses for `isa`; there is no AMX set,
// since a step has no product of two matrices.
const DeltaKernels& delta_kernels_portable();
const DeltaKernels& delta_kernels_avx2();
const DeltaKernels& delta_kernels_avx512();
const DeltaKernels& delta_kernels(CpuIsa isa);

}  // namespace sluice
