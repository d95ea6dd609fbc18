// Blocks that share one task and access each other's shared memory: a cluster where the GPU has
// clusters (compute capability 9.0), a single block elsewhere.
//
// Used by sampling (a row of logits), page selection (a list), the router (rows) and the mixer of
// the gated delta rule (a key head). Thread rule: device code.
#pragma once

#include <cooperative_groups.h>
#include <nv/target>

namespace sluice::cuda {

// Cluster instructions exist from sm_90 on, hence NV_IF_TARGET: code for older GPUs must compile
// without them.
struct ClusterBlocks {
  __device__ static unsigned count() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (return cooperative_groups::this_cluster().num_blocks();),
                 (return 1;))
  }
  __device__ static unsigned rank() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (return cooperative_groups::this_cluster().block_rank();),
                 (return 0;))
  }
  // All threads of all blocks call it.
  __device__ static void sync() {
    NV_IF_TARGET(NV_PROVIDES_SM_90, (cooperative_groups::this_cluster().sync();),
                 (__syncthreads();))
  }
  // The address that `mine` has in the shared memory of block `rank`. Order: after a sync, since a
  // block must have begun before others access it, and before another sync, since it must not have
  // ended.
  template <typename T>
  __device__ static T* of_block(T* mine, unsigned rank) {
    NV_IF_TARGET(NV_PROVIDES_SM_90,
                 (return cooperative_groups::this_cluster().map_shared_rank(mine, rank);),
                 (return mine;))
  }
};

}  // namespace sluice::cuda
