// The kernels of score_tiles for true rows and for pools: their key vectors stay in shared memory.
// Thread rule: enqueue only.
#include "ops/cuda/tiles/score_kernel.cuh"
#include "ops/cuda/tiles/score_product.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 4;  // two blocks a multiprocessor: one's exponentials, the other's products

template <int kTileKeys, bool kHasVisits = false>
using Resident = tiles::Config<kTileKeys, true, kWarps, tiles::WarpProduct, kHasVisits>;

// Calls fn with the configuration of the call's probes.
template <typename Fn>
auto with_config(const ScoreCall& call, const Fn& fn) {
  if (call.visits != nullptr) return fn(Resident<128, true>());
  if (call.probes.kind == TileProbeKind::kRows) return fn(Resident<128>());
  switch (call.probes.key_pool_tokens) {
    case 8:
      return fn(Resident<16>());
    case 16:
      return fn(Resident<8>());
    case 32:
      return fn(Resident<4>());
    case 64:
      return fn(Resident<2>());
    default:
      return fn(Resident<1>());
  }
}

ScoreShape shape(const ScoreCall& call) {
  return with_config(call, [&](auto config) { return tiles::shape_of<decltype(config)>(call); });
}

cudaError_t launch(cudaStream_t stream, const ScoreCall& call) {
  return with_config(call,
                     [&](auto config) { return tiles::launch<decltype(config)>(stream, call); });
}

}  // namespace

ScoreKernel score_rows_kernel() { return {.fits = nullptr, .shape = shape, .launch = launch}; }

}  // namespace sluice::cuda
