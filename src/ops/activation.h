// SwiGLU: the gate of the MLP, alone and behind its product.
//
// Used by model/decoder between the two MLP products. Thread rule: enqueue only.
#pragma once

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/matmul.h"

namespace sluice {

struct SwigluArgs {
  TensorView gate_up;  // bf16 [m, 2 * intermediate]: gate, then up
  TensorView out;      // bf16 [m, intermediate]
};

// out = silu(gate) * up with silu(x) = x / (1 + exp(-x)), in f32, rounded once.
// Source: Shazeer 2020, arXiv 2002.05202, equation 6.
void swiglu(Stream& stream, const SwigluArgs& args);

struct GatedProductArgs {
  TensorView x;         // bf16 [m, k]
  PackedWeight weight;  // [2 * intermediate, k]: gate, then up
  TensorView gate_up;   // bf16 [m, 2 * intermediate]: scratch, holds anything afterwards
  TensorView out;       // bf16 [m, intermediate]
};

// out = swiglu(bf16(x * weight^T)): the product and the gate as one op, since for few rows the way
// through memory between the two costs more than the gate. The same as `matmul` and `swiglu` after
// each other; bit for bit on the CPU.
// Aliasing: `out` and `gate_up` overlap nothing.
void gated_product(Stream& stream, const GatedProductArgs& args);

struct GatherRowsArgs {
  TensorView x;        // bf16 [m, hidden]
  TensorView indices;  // i32 [n], each in [0, m)
  TensorView out;      // bf16 [n, hidden]
};

// out[i] = x[indices[i]]: only the last token of a span needs logits.
void gather_rows(Stream& stream, const GatherRowsArgs& args);

}  // namespace sluice
