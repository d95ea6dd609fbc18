// The walk over chunks of the gated delta rule on lanes.
#include "ops/cuda/delta/chunk_scan.cu"
