// The inner loop of score_tiles for AVX2. Thread rule: see tiles/kernels.h.
#include "ops/cpu/tiles/kernels_impl.h"

namespace sluice {

const TileKernels& tile_kernels_avx2() { return kKernels; }

}  // namespace sluice
