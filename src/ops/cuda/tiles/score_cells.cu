// The kernels of score_tiles for antidiagonal cells: rows and keys of `stride` tokens, in steps.
// Thread rule: enqueue only.
#include "ops/cuda/tiles/score_kernel.cuh"
#include "ops/cuda/tiles/score_product.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;  // more rows a block, so that fewer blocks load the same keys

template <int kTileKeys>
using Streamed = tiles::Config<kTileKeys, false, kWarps, tiles::WarpProduct>;

ScoreShape shape(const ScoreCall& call) {
  return tiles::with_stride<Streamed>(
      call, [&](auto config) { return tiles::shape_of<decltype(config)>(call); });
}

cudaError_t launch(cudaStream_t stream, const ScoreCall& call) {
  return tiles::with_stride<Streamed>(
      call, [&](auto config) { return tiles::launch<decltype(config)>(stream, call); });
}

}  // namespace

ScoreKernel score_cells_kernel() { return {.fits = nullptr, .shape = shape, .launch = launch}; }

}  // namespace sluice::cuda
