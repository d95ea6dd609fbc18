// Steps of the gated delta rule on lanes.
#include "ops/cuda/delta/steps.cu"
