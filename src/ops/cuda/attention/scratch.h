// Device memory that a stream's attention keeps between kernels, for decode and prefill alike.
//
// Used by ops/cuda/attention/decode/decode.cc, attention/prefill/prefill.cc and cuda_ops.cc. Thread
// rule: the thread that enqueues on the stream; attention_scratch inside `submit`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {

// Calls on one stream run in order, so they share the memory; every stream has its own.
class AttentionScratch final : public CudaOpState {
 public:
  static constexpr size_t kCounterBytes = size_t{256} << 10;
  static constexpr int64_t kMaxCounters = kCounterBytes / sizeof(uint32_t);

  explicit AttentionScratch(CudaStream& stream);

  // Zero between kernels: a kernel that uses a counter resets it to 0.
  uint32_t* counters() const { return reinterpret_cast<uint32_t*>(memory_.data()); }
  // The rest. Only the open window of an unfinished gathered list keeps its contents between calls.
  std::byte* data() const { return memory_.data() + kCounterBytes; }
  static constexpr size_t data_bytes() { return kAttentionScratchBytes - kCounterBytes; }

  // Alternates between 0 and 1: a part of a list reads the open window of the part before it while
  // it writes its own, so the two need different places.
  int32_t next_open_place() { return open_place_ ^= 1; }

 private:
  Buffer memory_;
  int32_t open_place_ = 0;
};

// Errors: kDevice when the stream's first call is captured or the memory cannot be taken.
AttentionScratch& attention_scratch(CudaStream& stream);

// Memory in which KV in codes becomes bf16 (attention/converted_kv.h).
class KvScratch final : public CudaOpState {
 public:
  KvScratch(CudaStream& stream, size_t num_bytes);

  std::byte* data() const { return memory_.data(); }
  size_t num_bytes() const { return memory_.size_bytes(); }

 private:
  Buffer memory_;
};

// Of this many bytes if the stream has none yet. Errors: as attention_scratch.
KvScratch& kv_scratch(CudaStream& stream, size_t num_bytes);

// Allocates the scratch now instead of in the stream's first call; of KV if its bytes are not 0.
void prepare_attention(CudaStream& stream, size_t kv_scratch_bytes);

}  // namespace sluice::cuda
