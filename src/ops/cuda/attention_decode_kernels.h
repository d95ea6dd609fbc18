// Launches of the decode attention kernels; attention_decode.cc calls them in this order.
//
// Thread rule: host thread, enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention_decode_params.h"

namespace sluice::cuda {

// Up to so many windows of a round are folded by a kernel that takes halves of windows, too.
inline constexpr int32_t kFewWindows = 32;

// Works out the windows of a round on tensor cores. REQUIRES: head_dim is 64 or 128; a window of
// two records has kMaxWindowTokens.
void launch_decode_windows(CudaStream& stream, const DecodeParams& p);

// The same for any head_dim, one token after the other.
void launch_decode_windows_general(CudaStream& stream, const DecodeParams& p);

// Folds the windows of a round into the state, or into the output.
void launch_decode_combine(CudaStream& stream, const DecodeParams& p);

}  // namespace sluice::cuda
