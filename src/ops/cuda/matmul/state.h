// The state of matrix products for one CUDA stream: the library's handle, its workspace, and pinned
// memory through which weights are loaded.
//
// Each part is created by the first op that needs it. Thread rule: as op_state.h.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "ops/cuda/matmul/cublaslt_matmul.h"
#include "ops/cuda/matmul/staging.h"
#include "ops/cuda/op_memory.h"
#include "ops/cuda/op_state.h"

namespace sluice::cuda {

class MatmulState final : public CudaOpState {
 public:
  explicit MatmulState(Device& device) : device_(device) {}

  CublasLtMatmul& library() {
    if (library_ == nullptr) library_ = std::make_unique<CublasLtMatmul>(device_);
    return *library_;
  }
  // Where parts of weights in codes become bf16, of at least `least_bytes`. Taken when such a
  // weight is loaded, so that a graph capture finds it.
  std::span<std::byte> converted(size_t least_bytes = kConvertedBytes) {
    if (!converted_ || converted_->size_bytes() < least_bytes) {
      converted_.emplace(device_.allocate(least_bytes, MemoryKind::kDevice));
    }
    return {converted_->data(), converted_->size_bytes()};
  }
  WeightStaging& staging() {
    if (staging_ == nullptr) staging_ = std::make_unique<WeightStaging>(device_);
    return *staging_;
  }

 private:
  Device& device_;
  std::unique_ptr<CublasLtMatmul> library_;
  std::unique_ptr<WeightStaging> staging_;
  std::optional<Buffer> converted_;
};

inline MatmulState& matmul_state(CudaStream& stream) {
  std::unique_ptr<CudaOpState>& state = op_state(stream).matmul;
  if (state == nullptr) state = std::make_unique<MatmulState>(stream.device());
  return static_cast<MatmulState&>(*state);
}

}  // namespace sluice::cuda
