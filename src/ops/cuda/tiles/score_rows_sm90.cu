// The kernel of score_tiles on Hopper for true rows that tiles/score_probes_sm90.cu does not take,
// such as the last rows of segments: warpgroup matrix products (wgmma).
//
// A warpgroup multiplies 128 rows by 128 keys. Products of one step run while the next is issued;
// two blocks a multiprocessor take turns at products and exponentials. Compiled for sm_90a only.
// Thread rule: enqueue only.
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/tiles/score_kernel.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda {
namespace {

// A warp has 16 of each 64 rows of its warpgroup (see tiles/score_product.cuh for the interface).
struct GroupProduct {
  // A step's copies go to the stage of two steps before, whose products every warp has waited for
  // before the barrier.
  static constexpr int kStages = 4;
  static constexpr int kStepsAhead = 2;
  static constexpr int kAlignment = kSwizzleUnitBytes;

  __device__ static int row_of_thread() {
    const int warp = threadIdx.x / kWarpThreads;
    const int lane = threadIdx.x % kWarpThreads;
    return lane / 16 * 64 + warp * 16 + lane % 16;
  }
  __device__ static void begin() { shared_write_fence(); }

  template <int kRows>
  __device__ __forceinline__ static void multiply(tiles::Panel<kRows>& rows,
                                                  tiles::Panel<tiles::kKeysAtOnce>& keys, bool adds,
                                                  float (&s)[2][64]) {
    const uint64_t key_matrix = matrix_descriptor(shared_address(keys), 16, kSwizzleUnitBytes);
    pin_registers(s[0]);
    pin_registers(s[1]);
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint64_t row_matrix =
          matrix_descriptor(shared_address(rows[m * 64]), 16, kSwizzleUnitBytes);
#pragma unroll
      for (int k = 0; k < tiles::kStepElements / 16; ++k) {
        wgmma_scores(s[m], advanced(row_matrix, 32 * k), advanced(key_matrix, 32 * k),
                     adds || k > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
  }
  __device__ __forceinline__ static void finish(float (&s)[2][64]) {
    wgmma_wait<0>();
    pin_registers(s[0]);
    pin_registers(s[1]);
  }
};

template <bool kHasVisits>
using Rows = tiles::Config<kMaskTileTokens, true, 4, GroupProduct, kHasVisits>;

// Pools leave too few products to gain by this kernel.
bool fits(const ScoreCall& call) {
  return call.probes.kind == TileProbeKind::kRows && call.head_dim % tiles::kStepElements == 0;
}

ScoreShape shape(const ScoreCall& call) {
  return call.visits != nullptr ? tiles::shape_of<Rows<true>>(call)
                                : tiles::shape_of<Rows<false>>(call);
}

cudaError_t launch(cudaStream_t stream, const ScoreCall& call) {
  return call.visits != nullptr ? tiles::launch<Rows<true>>(stream, call)
                                : tiles::launch<Rows<false>>(stream, call);
}

}  // namespace

ScoreKernel score_hopper_rows_kernel() { return {.fits = fits, .shape = shape, .launch = launch}; }

}  // namespace sluice::cuda
