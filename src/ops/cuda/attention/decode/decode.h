// Attention of one row of each sequence (decode), on CUDA.
//
// Used by attention/attention.cc. Thread rule: host thread, enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/cuda_stream.h"
#include "ops/attention/attention.h"

namespace sluice::cuda {

// The op of ops/attention/attention.h for sequences of at most one row.
//
// The run is cut into windows at absolute positions, and these into strips of 32 tokens. Each strip
// is computed from the empty state, strips are added up to halves of windows and these to
// windows, and the windows are folded into the carried state in order of position, whatever the
// batch, the launch and the residency. A window is the largest multiple of the tile that divides
// both block_tokens and 256, so a walk cut between blocks has the bits of one that is not; it is
// 256 tokens for the usual block sizes, and small blocks are slow.
// A page list changes which tiles of a window are visited, and nothing else. If a gathered list is
// cut inside a window, the unfinished window stays in the stream's scratch for the next part: the
// parts of a list must follow one another, and then have the bits of the pages in place.
// P is rounded to bf16 for the product with V, and not for the sum.
// Results of windows lie in the stream's scratch (attention/scratch.h). A call that needs more runs
// in several rounds; with 32 query heads of 128 channels and windows of 256 tokens that begins at
// 1M tokens, of all sequences together. Order: launches depend on max_kv_tokens and the room for
// lists, never on lengths; may be captured into a graph once the stream has run the op. Errors:
// kDevice when the stream's first call is captured or the scratch cannot be taken.
void decode_attention(CudaStream& stream, const AttentionArgs& args);

// Tokens of a window for blocks of `block_tokens`: a power of two that divides 256.
int32_t decode_window_tokens(int32_t block_tokens);

}  // namespace sluice::cuda
