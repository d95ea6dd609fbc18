// Allocates the scratch memory of a stream's attention and zeroes its counters.
#include "ops/cuda/attention/scratch.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/op_state.h"

namespace sluice::cuda {

AttentionScratch::AttentionScratch(CudaStream& stream)
    : memory_(stream.device().allocate(kAttentionScratchBytes, MemoryKind::kDevice)) {
  check_cuda(cudaMemsetAsync(memory_.data(), 0, kCounterBytes, stream.handle()), "cudaMemsetAsync");
}

AttentionScratch& attention_scratch(CudaStream& stream) {
  std::unique_ptr<CudaOpState>& state = op_state(stream).attention;
  if (state == nullptr) state = std::make_unique<AttentionScratch>(stream);
  return static_cast<AttentionScratch&>(*state);
}

KvScratch::KvScratch(CudaStream& stream, size_t num_bytes)
    : memory_(stream.device().allocate(num_bytes, MemoryKind::kDevice)) {}

KvScratch& kv_scratch(CudaStream& stream, size_t num_bytes) {
  std::unique_ptr<CudaOpState>& state = op_state(stream).converted_kv;
  if (state == nullptr) state = std::make_unique<KvScratch>(stream, num_bytes);
  return static_cast<KvScratch&>(*state);
}

void prepare_attention(CudaStream& stream, size_t kv_scratch_bytes) {
  stream.submit("prepare attention", [&](cudaStream_t) {
    attention_scratch(stream);
    if (kv_scratch_bytes > 0) kv_scratch(stream, kv_scratch_bytes);
  });
}

}  // namespace sluice::cuda
