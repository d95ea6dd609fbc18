// The scratch of products on lanes.
//
// Thread rule: as lanes.h.
#pragma once

#include <span>
#include <vector>

#include "device/cuda/cuda_stream.h"

namespace sluice::cuda {

class MatmulState {
 public:
  std::span<std::byte> converted() { return converted_; }

 private:
  std::vector<std::byte> converted_ = std::vector<std::byte>(size_t{1} << 20);
};

inline MatmulState& matmul_state(CudaStream&) {
  static MatmulState own;
  return own;
}

}  // namespace sluice::cuda
