// RMSNorm, alone and fused with the residual addition before it.
//
// Used by model/decoder twice per layer and once at the end. Thread rule: enqueue only.
#pragma once

#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

struct RmsNormArgs {
  TensorView x;         // bf16 [m, hidden]
  TensorView residual;  // bf16 [m, hidden], read and written, or absent
  TensorView weight;    // bf16 [hidden]
  TensorView out;       // bf16 [m, hidden]; may be the same memory as x
  float eps = 1e-6f;
  float weight_offset = 0.0f;  // added to the weight in f32: 1 where it is stored as the rest
};

// With a residual: residual = bf16(residual + x), out = norm(residual); without: out = norm(x),
// where norm(r) = (weight_offset + weight) * r / sqrt(mean(r^2) + eps).
// Shapes: x, residual and out [m, hidden], weight [hidden].
// Types: bf16 in and out; computed in f32, rounded once.
// Aliasing: `out` may be the memory of `x`; `residual` overlaps neither.
// Order: enqueue only; rows do not depend on each other.
// Errors: those of every op (ops/ops.h).
// Source: Zhang and Sennrich 2019, arXiv 1910.07467, equation 4.
void rms_norm(Stream& stream, const RmsNormArgs& args);

}  // namespace sluice
