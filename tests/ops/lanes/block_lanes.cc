// launch_decode_windows on lanes.
#include "ops/cuda/attention/decode/block.cu"
