// Linked instead of chunk_scan_sm90.cu in a build without sm_90a.
#include "core/error.h"
#include "ops/cuda/delta/delta_rule.h"

namespace sluice::cuda {

bool has_warpgroup_scan(CudaStream&) { return false; }

void launch_warpgroup_scan(CudaStream&, const ChunkCall&) {
  SLUICE_CHECK(false, "launch_warpgroup_scan: a build without sm_90a");
}

}  // namespace sluice::cuda
