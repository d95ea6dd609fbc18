// The last step of a mixture, for one number: what all rows share is added to the sum of the slots.
//
// Used by each_pair.cu and sort.cu. Thread rule: device code.
#pragma once

#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/experts.h"

namespace sluice::cuda {

__device__ inline void write_sum(const ExpertCall& call, int64_t row, int32_t column, float sum) {
  const int64_t at = row * call.hidden + column;
  if (call.shared != nullptr) {
    const float gate = 1.0f / (1.0f + expf(-call.shared_gate[row]));
    sum = __fmaf_rn(gate, bf16_to_float(call.shared[at]), sum);
  }
  call.out[at] = float_to_bf16(sum);
}

}  // namespace sluice::cuda
