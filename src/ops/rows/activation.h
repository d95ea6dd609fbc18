// SwiGLU, alone and fused with the product before it; and rows picked out by index.
//
// Used by model/decoder between the two MLP products. Thread rule: enqueue only.
#pragma once

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/matmul/matmul.h"

namespace sluice {

struct SwigluArgs {
  TensorView gate_up;  // bf16 [m, 2 * intermediate]: gate, then up
  TensorView out;      // bf16 [m, intermediate]
};

// out = silu(gate) * up with silu(x) = x / (1 + exp(-x)).
// Shapes: gate_up [m, 2 * intermediate], out [m, intermediate].
// Types: bf16 in and out; computed in f32, rounded once.
// Aliasing: `out` does not overlap `gate_up`.
// Order: enqueue only; rows do not depend on each other.
// Errors: those of every op (ops/ops.h).
// Source: Shazeer 2020, arXiv 2002.05202, equation 6.
void swiglu(Stream& stream, const SwigluArgs& args);

struct GatedProductArgs {
  TensorView x;         // bf16 [m, k]
  PackedWeight weight;  // [2 * intermediate, k]: gate, then up
  TensorView gate_up;   // bf16 [m, 2 * intermediate]: scratch, holds anything afterwards
  TensorView out;       // bf16 [m, intermediate]
};

// out = swiglu(bf16(x * weight^T)): product and gate as one op, because for few rows the trip
// through memory between the two costs more than the gate. Equal to `matmul` followed by `swiglu`;
// bit for bit on the CPU.
// Shapes: x [m, k], weight [2 * intermediate, k], gate_up [m, 2 * intermediate], out
// [m, intermediate].
// Types: bf16; the product is summed in f32 and rounded before the gate, which rounds once more.
// Aliasing: `out` and `gate_up` overlap nothing.
// Order: enqueue only; the contents of `gate_up` are undefined afterwards.
// Errors: those of `matmul`.
// Source: as `swiglu`.
void gated_product(Stream& stream, const GatedProductArgs& args);

struct GatherRowsArgs {
  TensorView x;        // bf16 [m, hidden]
  TensorView indices;  // i32 [n], each in [0, m)
  TensorView out;      // bf16 [n, hidden]
};

// out[i] = x[indices[i]]: only the last token of a span needs logits.
// Shapes: x [m, hidden], indices [n], out [n, hidden].
// Types: bf16 rows, i32 indices; bytes are copied.
// Aliasing: `out` does not overlap `x`.
// Order: enqueue only; indices are read when the stream reaches the op.
// Errors: an index outside [0, m) is a failed check on the CPU and an asynchronous error on CUDA.
void gather_rows(Stream& stream, const GatherRowsArgs& args);

}  // namespace sluice
