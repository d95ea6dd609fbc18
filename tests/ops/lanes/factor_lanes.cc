// What chunks of the gated delta rule need before S, on lanes.
#include "ops/cuda/delta/chunk_factors.cu"
