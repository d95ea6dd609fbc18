// What kernels demand of a run of keys.
#include "ops/cuda/tiles/key_run.h"

#include "core/error.h"
#include "ops/cuda/attention/converted_kv.h"
#include "ops/cuda/kv_codec.h"

namespace sluice::cuda {

void check_key_width(const char* op, const CudaStream& stream, int32_t head_dim) {
  if (head_dim % 8 != 0) {
    fail(ErrorCode::kUnsupported,
         "{} on {} needs a head_dim that is a multiple of 8, not {}; use the device 'cpu'", op,
         stream.device().info().name, head_dim);
  }
}

void check_key_run(const char* op, const CudaStream& stream, const KvBlocksView& kv) {
  expect_kv_element(op, kv.shape, {KvElement::kBFloat16, KvElement::kE4m3, KvElement::kInt8},
                    /*takes_bf16_keys=*/true);
  check_key_width(op, stream, kv.shape.head_dim);
  SLUICE_CHECK(has_kv_tensor_map(kv), "blocks lie at {}, {} bytes apart; both must be 16-byte",
               static_cast<const void*>(kv.base), kv.stride_bytes);
}

KvBlocksView convert_key_run(CudaStream& stream, cudaStream_t handle, const KvBlocksView& kv,
                             KeyRunCall& run) {
  if (kv_codes(kv.shape) != KvCodes::kAll) return kv;
  const CodedRun coded{.kv = kv,
                       .kv_begin = run.kv_begin,
                       .kv_end = run.kv_end,
                       .block_table = run.block_table,
                       .max_blocks = run.max_blocks};
  const ConvertedKv keys = convert_keys(handle, coded, kv_scratch(stream, kLeastKvScratchBytes));
  run.block_table = keys.block_table;
  run.kv_base = keys.kv.base;
  run.kv_stride_bytes = static_cast<int64_t>(keys.kv.stride_bytes);
  run.lines_per_head = 1;
  run.head_elements = int64_t{run.block_tokens} * run.head_dim;
  return keys.kv;
}

}  // namespace sluice::cuda
