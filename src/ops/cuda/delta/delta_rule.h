// The border between the gated delta rule's entry and its kernels.
//
// Used by delta_rule.cu, steps.cu and the chunk kernels. Rows [begin, end) of a sequence in a call
// are steps, then chunks, then steps: a chunk is kDeltaChunk rows whose first position is a
// multiple of it. Which rows are chunks depends on positions and on the cut into calls, never on
// neighbours. Thread rule: enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/delta/delta.h"

namespace sluice::cuda {

struct RuleCall;

// Which rows of a sequence a launch of steps computes.
enum class StepRows {
  kAll,           // of a call without chunks
  kBeforeChunks,  // those before the first chunk; all if there is none
  kAfterChunks,   // those after the last chunk; none if there is none
};

void launch_steps(CudaStream& stream, const RuleCall& call, StepRows which);

}  // namespace sluice::cuda
