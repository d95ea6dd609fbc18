// Tiles of experts in codes on lanes.
#include "ops/cuda/experts/coded_tiles.cu"
