// Products with weights in e4m3, and of experts in codes, on lanes.
#include "ops/cuda/experts/coded_pairs.cu"
#include "ops/cuda/matmul/e4m3_skinny.cu"
