// Launches on lanes: a kernel has ended when the launch returns.
//
// Thread rule: as lanes.h.
#pragma once

#include "device/cuda/cuda_stream.h"

namespace sluice::cuda {

inline void wait_for_earlier_work() {}
inline void let_next_kernel_start() {}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

template <typename Call>
void launch_early(CudaStream&, void (*kernel)(Call), const LaunchShape& shape, const Call& call) {
  SLUICE_CHECK(shape.shared_bytes <= lanes::kSharedBytes, "{} bytes", shape.shared_bytes);
  lanes::run_grid(shape.grid, shape.block, [&] { kernel(call); });
}

}  // namespace sluice::cuda
