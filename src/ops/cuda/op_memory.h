// What the CUDA ops keep in device memory: sizes alone, so that a build without them can plan for a
// GPU that is not here. Without CUDA types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/matmul/packed_weight.h"
#include "ops/op_needs.h"

namespace sluice::cuda {

// What matrix products of one stream keep: what NVIDIA recommends for Hopper.
inline constexpr size_t kMatmulWorkspaceBytes = size_t{32} << 20;
// What attention of one stream keeps. Decode needs most: partial sums of all windows of a call. A
// call that needs more runs in several rounds (attention/decode/decode.h).
inline constexpr size_t kAttentionScratchBytes = size_t{64} << 20;

// Weights in e4m3 that are multiplied by many rows become bf16 in parts of this size.
inline constexpr size_t kConvertedBytes = size_t{64} << 20;

// KV in e4m3 becomes bf16 here before prefill reads it: one KV head of the longest sequence, and
// the table of its blocks, which have at least 4 KiB. Never less than this, so that the heads of
// usual prompts are converted together.
inline constexpr size_t kLeastKvScratchBytes = size_t{64} << 20;
constexpr size_t kv_scratch_table_bytes(size_t block_bytes) { return block_bytes / 1024; }
constexpr size_t kv_scratch_block_bytes(size_t scratch_bytes) {
  return scratch_bytes / 1025 / 16 * 1024 * 16;
}
inline size_t kv_scratch_bytes(const OpNeeds& needs) {
  if (needs.kv.element != KvElement::kE4m3) return 0;
  const auto head_bytes =
      static_cast<size_t>(needs.max_tokens) * 2 * static_cast<size_t>(needs.kv.head_dim) * 2;
  constexpr size_t kUnit = size_t{1} << 20;
  const size_t block_bytes =
      (std::max(head_bytes, kLeastKvScratchBytes) + kUnit - 1) / kUnit * kUnit;
  return block_bytes + kv_scratch_table_bytes(block_bytes);
}

inline size_t stream_memory_bytes(const OpNeeds& needs) {
  return kMatmulWorkspaceBytes + kAttentionScratchBytes +
         (needs.has_e4m3_weights ? kConvertedBytes : 0) + kv_scratch_bytes(needs);
}

// A packed weight is the matrix itself, row by row, and then its scales. Errors: kUnsupported for
// another format.
inline size_t row_major_bytes(int64_t num_rows, int64_t num_cols, WeightFormat format) {
  if (!stores_e4m3(format)) expect_weight_format("pack_weight", format, WeightFormat::kBFloat16);
  constexpr size_t kAlignment = 256;
  constexpr size_t kScaleAlignment = 16;
  size_t num_bytes = weight_bytes(format, num_rows, num_cols);
  if (stores_e4m3(format)) num_bytes += kScaleAlignment;
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace sluice::cuda
