// Linked instead of the table of CUDA kernels in a build without them. It is never called: such a
// build creates no CUDA device.
#include "core/error.h"
#include "ops/cuda/cuda_ops_door.h"

namespace sluice {

const Ops& cuda_ops() { check_failed("a build with CUDA kernels", "this one has none"); }

}  // namespace sluice
