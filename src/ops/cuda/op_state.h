// What the ops keep for one stream between calls, a place for each family that needs one.
//
// Used by ops/cuda/matmul and ops/cuda/attention_scratch: a stream has one CudaOpState, and this is
// the class behind it. Thread rule: the thread that enqueues on the stream, inside `submit`.
#pragma once

#include <memory>

#include "device/cuda/cuda_stream.h"

namespace sluice::cuda {

// Each member is null until its family's first op on the stream makes it. That op must not be
// captured, since nothing may be allocated inside a capture; a decode step always runs once as it
// is before it is captured (engine/decode_graphs.h).
struct OpState final : CudaOpState {
  std::unique_ptr<CudaOpState> matmul;
  std::unique_ptr<CudaOpState> attention;
};

inline OpState& op_state(CudaStream& stream) {
  if (!stream.op_state()) stream.op_state() = std::make_unique<OpState>();
  return static_cast<OpState&>(*stream.op_state());
}

}  // namespace sluice::cuda
