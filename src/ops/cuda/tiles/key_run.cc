// What kernels demand of a run of keys.
#include "ops/cuda/tiles/key_run.h"

#include "core/error.h"
#include "ops/cuda/attention/kv_tensor_map.h"

namespace sluice::cuda {

void check_key_width(const char* op, const CudaStream& stream, int32_t head_dim) {
  if (head_dim % 8 != 0) {
    fail(ErrorCode::kUnsupported,
         "{} on {} needs a head_dim that is a multiple of 8, not {}; use the device 'cpu'", op,
         stream.device().info().name, head_dim);
  }
}

void check_key_run(const char* op, const CudaStream& stream, const KvBlocksView& kv) {
  expect_kv_element(op, kv.shape, {KvElement::kBFloat16});
  check_key_width(op, stream, kv.shape.head_dim);
  SLUICE_CHECK(has_kv_tensor_map(kv), "blocks lie at {}, {} bytes apart; both must be 16-byte",
               static_cast<const void*>(kv.base), kv.stride_bytes);
}

}  // namespace sluice::cuda
