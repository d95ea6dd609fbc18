// What the CUDA ops keep in device memory: sizes alone, so that a build without them can plan for a
// GPU that is not here. Without CUDA types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/matmul/packed_weight.h"

namespace sluice::cuda {

// What matrix products of one stream keep: what NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;
// What attention of one stream keeps. Decode needs most: partial sums of all windows of a call. A
// call that needs more runs in several rounds (attention/decode/decode.h).
inline constexpr size_t kAttentionScratchBytes = size_t{64} << 20;

constexpr size_t stream_memory_bytes() { return kMatmulWorkspaceBytes + kAttentionScratchBytes; }

// A packed weight is the matrix itself, row by row. Errors: kUnsupported for another format.
inline size_t row_major_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) {
  expect_weight_format("pack_weight", format, WeightFormat::kBFloat16);
  constexpr size_t kAlignment = 256;
  const size_t num_bytes = weight_bytes(format, num_rows, num_cols);
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace sluice::cuda
