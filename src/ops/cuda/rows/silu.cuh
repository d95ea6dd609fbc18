// The gate of SwiGLU, for one number.
//
// Used by activation.cu and, after a product, by matmul/skinny.cu. Thread rule: device code.
#pragma once

#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {

// x / (1 + e^-x) * up. e^-x overflows to infinity below -88.7, where the quotient is -0. The
// reciprocal is the hardware's, within 1 unit: an exact division would make the kernel as busy
// with arithmetic as with bytes.
__device__ inline float silu_times(float gate, float up) {
  return gate * reciprocal_approx(1.0f + expf(-gate)) * up;
}

}  // namespace sluice::cuda
