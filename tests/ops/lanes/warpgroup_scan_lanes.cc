// The walk over chunks by products of warpgroups, on lanes.
#include "ops/cuda/delta/chunk_scan_sm90.cu"
