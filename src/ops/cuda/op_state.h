// The state that ops keep for one stream between calls, one member per family of ops.
//
// Used by ops/cuda/matmul/state.h, ops/cuda/attention/scratch.cc and converted_kv.cu. It is
// the class behind the one CudaOpState of a stream. Thread rule: the thread that enqueues on the
// stream, inside `submit`.
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
  std::unique_ptr<CudaOpState> converted_kv;
};

// The state of `stream`, created on the first call.
inline OpState& op_state(CudaStream& stream) {
  if (!stream.op_state()) stream.op_state() = std::make_unique<OpState>();
  return static_cast<OpState&>(*stream.op_state());
}

}  // namespace sluice::cuda
