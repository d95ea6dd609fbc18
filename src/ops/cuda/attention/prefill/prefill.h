// Attention of many rows of a sequence at once (prefill), on CUDA.
//
// Used by ops/cuda/attention/attention.cc, which chooses between this and the decode kernels.
// Thread rule: host thread, enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/attention/attention.h"

namespace sluice::cuda {

// The op of ops/attention/attention.h for any number of rows; correct for a single row too, but
// slow there. It alone takes tile masks.
//
// A tile of KV tokens updates a row's state once: 128 tokens at absolute positions where
// block_tokens is a multiple of 128, else the largest of 64, 32 or 16 that the kernel has and that
// divides it. Blocks are whole tiles, so a walk cut between blocks has the same bits as one that is
// not. P is rounded to bf16 for the product with V, and not for the sum.
// Order: needs nothing from the host between launches; may be captured into a graph.
// With page lists a CTA (128 packed rows, 64 in the general kernel) visits each tile that contains
// a page of some row's list; tokens that a row has not listed have weight 0. With a tile mask it
// visits the set tiles, which all of its rows share, and then the columns. Errors: kUnsupported for
// gathered pages, for a scale that is not positive, and for more columns than the scratch has room
// for.
void prefill_attention(CudaStream& stream, const AttentionArgs& args);

}  // namespace sluice::cuda
