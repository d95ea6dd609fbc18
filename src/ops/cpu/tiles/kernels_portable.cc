// The inner loop of score_tiles for 16-byte vectors, which every CPU has. Thread rule: see
// tiles/kernels.h.
#include "ops/cpu/tiles/kernels_impl.h"

namespace sluice {

const TileKernels& tile_kernels_portable() { return kKernels; }

}  // namespace sluice
