// The border between the entries of the gated delta rule's ops and their kernels.
//
// Used by delta_rule.cu, short_conv.cu, steps.cu and the chunk kernels. Rows [begin, end) of a
// sequence in a call are steps, then chunks, then steps: a chunk is kDeltaChunk rows whose first
// position is a multiple of it. Which rows are chunks depends on positions and on the cut into
// calls, never on neighbours. Thread rule: enqueue only.
#pragma once

#include <cstddef>

#include "device/cuda/cuda_report.h"
#include "device/cuda/cuda_stream.h"
#include "ops/delta/delta.h"

namespace sluice::cuda {

struct RuleCall;
struct ChunkCall;

// Enqueues the convolution of all rows; `report` gets sequences whose slot is not there. REQUIRES:
// there are rows.
void launch_short_conv(CudaStream& stream, const ShortConvArgs& args, const CudaReport& report);

// Which rows of a sequence a launch of steps computes.
enum class StepRows {
  kAll,           // of a call without chunks
  kBeforeChunks,  // those before the first chunk; all if there is none
  kAfterChunks,   // those after the last chunk; none if there is none
};

// Enqueues the steps of all sequences. A sequence without such rows costs blocks that end at once.
void launch_steps(CudaStream& stream, const RuleCall& call, StepRows which);

// What the chunks of a range of slots need that does not depend on S, for all at once; then the
// chunks, one after the other. REQUIRES: heads of kChunkDim channels of keys and whole blocks of
// columns; slots in their order, after the steps before the chunks.
void launch_chunk_factors(CudaStream& stream, const ChunkCall& call);
void launch_chunk_scan(CudaStream& stream, const ChunkCall& call);

// The same walk by products of warpgroups. REQUIRES: has_warpgroup_scan(stream), of Hopper and a
// build with sm_90a.
bool has_warpgroup_scan(CudaStream& stream);
void launch_warpgroup_scan(CudaStream& stream, const ChunkCall& call);

// Shared memory of a block of launch_chunk_scan, more than some GPUs have.
size_t chunk_scan_shared_bytes();

}  // namespace sluice::cuda
