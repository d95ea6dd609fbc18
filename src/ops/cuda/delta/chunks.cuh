// The chunks of a sequence's rows in a call.
//
// Used by steps.cu and the chunk kernels, which must agree. Thread rule: device code.
#pragma once

#include "ops/cuda/delta/sequence_part.cuh"

namespace sluice::cuda {

// Neighbouring chunks of kDeltaChunk rows of the call, from row `begin` on.
struct ChunkRange {
  int32_t begin = 0;
  int32_t count = 0;

  __device__ int32_t end() const { return begin + count * kDeltaChunk; }
};

// Whole chunks alone: of a part that begins or ends inside a chunk, these rows are steps.
__device__ inline ChunkRange chunks_of(const SequencePart& part) {
  const int32_t inside = part.first_pos % kDeltaChunk;
  ChunkRange chunks{.begin = part.begin + (inside == 0 ? 0 : kDeltaChunk - inside)};
  chunks.count = max(0, (part.end - chunks.begin) / kDeltaChunk);
  return chunks;
}

}  // namespace sluice::cuda
