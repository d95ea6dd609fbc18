// What a build without CUDA kernels links in place of their table. It is never reached: such a
// build makes no CUDA device.
#include "core/error.h"
#include "ops/cuda/cuda_ops_door.h"

namespace sluice {

const Ops& cuda_ops() { check_failed("a build with CUDA kernels", "this one has none"); }

}  // namespace sluice
