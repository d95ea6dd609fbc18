// out [m, n] = x [m, k] * weight [n, k]^T with weights in e4m3, for at most 16 rows.
//
// Bound: bytes, n k, the weight once. Tile: that of skinny_ring.cuh, with e4m3_codec.cuh. Each
// product loses some 3 us at its start and end, while nothing is read (docs/kernels/cuda_ops.md).
// Thread rule: enqueue only.
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/e4m3_codec.cuh"

namespace sluice::cuda {

void matmul_skinny_e4m3(CudaStream& stream, const MatmulArgs& args) {
  launch_skinny_codes<E4m3Codec>(stream, {skinny_call(args), e4m3_scales_of(args.weight)},
                                 args.out.dtype());
}

void gated_skinny_e4m3(CudaStream& stream, const GatedProductArgs& args) {
  launch_skinny_codes<E4m3Codec>(stream, {skinny_call(args), e4m3_scales_of(args.weight)},
                                 DType::kBF16);
}

}  // namespace sluice::cuda
