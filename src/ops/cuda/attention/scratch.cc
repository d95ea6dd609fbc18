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

void prepare_attention(CudaStream& stream) {
  stream.submit("prepare attention", [&](cudaStream_t) { attention_scratch(stream); });
}

}  // namespace sluice::cuda
