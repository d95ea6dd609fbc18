// Device memory that a stream's attention keeps between kernels, for decode and prefill alike.
//
// Used by ops/cuda/attention/decode/decode.cc, attention/prefill/prefill.cc and cuda_ops.cc. Thread
// rule: the thread that enqueues on the stream; attention_scratch inside `submit`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_stream.h"

namespace sluice::cuda {

// 64 MiB, taken by the stream's first call.
inline constexpr size_t kAttentionScratchBytes = size_t{64} << 20;

class AttentionScratch final : public CudaOpState {
 public:
  static constexpr size_t kCounterBytes = size_t{256} << 10;
  static constexpr int64_t kMaxCounters = kCounterBytes / sizeof(uint32_t);

  explicit AttentionScratch(CudaStream& stream);

  // Zeros between kernels: who counts or sets one takes care that it is 0 again.
  uint32_t* counters() const { return reinterpret_cast<uint32_t*>(memory_.data()); }
  // The rest, whose contents only an unfinished list of pages needs between calls.
  std::byte* data() const { return memory_.data() + kCounterBytes; }
  static constexpr size_t data_bytes() { return kAttentionScratchBytes - kCounterBytes; }

  // Alternates between 0 and 1: a part of a list leaves its open window elsewhere than where the
  // part before it did, since the two windows are worked on at the same time.
  int32_t next_open_place() { return open_place_ ^= 1; }

 private:
  Buffer memory_;
  int32_t open_place_ = 0;
};

// Errors: kDevice when the stream's first call is captured or the memory cannot be taken.
AttentionScratch& attention_scratch(CudaStream& stream);

// Takes the scratch now, which the stream's first call would.
void prepare_attention(CudaStream& stream);

}  // namespace sluice::cuda
