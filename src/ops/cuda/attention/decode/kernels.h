// Launches of the decode attention kernels; attention/decode/decode.cc calls them in this order.
//
// Thread rule: host thread, enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/decode/choice.h"
#include "ops/cuda/attention/decode/params.h"

namespace sluice::cuda {

// Computes the windows of a round, few of them. REQUIRES: the only round, up to kMaxWaveSequences
// sequences, windows of kMaxWindowTokens, no list; head_dim is 64 or 128, p.group at most
// kMaxWaveGroup; a block may have kWaveSharedBytes.
void launch_decode_wave(CudaStream& stream, const DecodeParams& p);

// Computes the windows of a round on tensor cores. REQUIRES: head_dim is 64, 128 or 256; a window
// of two records has kMaxWindowTokens.
void launch_decode_windows(CudaStream& stream, const DecodeParams& p);

// Computes the windows that lists show, at most p.num_windows, and writes their number to
// p.num_found. REQUIRES: head_dim is 64 or 128, at most 8 query heads a KV head, windows of
// kMaxWindowTokens that are whole pages; gathered lists are gathered as a whole.
void launch_decode_listed_windows(CudaStream& stream, const DecodeParams& p);

// The same for any head_dim, one token after the other.
void launch_decode_windows_general(CudaStream& stream, const DecodeParams& p);

// Folds the windows of a round into the state, or into the output.
void launch_decode_combine(CudaStream& stream, const DecodeParams& p);

}  // namespace sluice::cuda
