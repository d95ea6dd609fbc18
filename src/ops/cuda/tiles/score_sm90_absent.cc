// Linked instead of the Hopper kernels in a build without sm_90a.
#include "ops/cuda/tiles/score_call.h"

namespace sluice::cuda {

ScoreKernel score_hopper_kernel() { return {}; }

}  // namespace sluice::cuda
