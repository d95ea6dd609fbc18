// launch_decode_wave on lanes.
#include "ops/cuda/attention/decode/wave.cu"
