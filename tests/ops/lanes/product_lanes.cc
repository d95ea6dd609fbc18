// Products with weights in e4m3 on lanes.
#include "ops/cuda/matmul/e4m3_skinny.cu"
