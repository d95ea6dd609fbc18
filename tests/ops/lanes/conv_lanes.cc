// The short convolution on lanes.
#include "ops/cuda/delta/short_conv.cu"
