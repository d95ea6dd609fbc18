// A warp rounds the key, or the value, of one token and KV head in place.
#include "device/cuda/cuda_stream.h"
#include "engine/fp8/round_on_gpu.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/kv_rounding.cuh"

namespace sluice::testing {
namespace {

using cuda::Bf16x8;

struct RoundOnGpuCall {
  std::byte* base;
  int64_t stride_bytes;
  const int32_t* kv_rows;
  int32_t block_tokens;
  int32_t head_dim;
  int32_t first_line;
  int32_t line_step;
  cuda::KvCodec codec;
};

// grid: rows, then keys and values of the KV heads in turn, or values alone. A lane has 8 channels.
template <KvElement kElement>
__global__ void __launch_bounds__(32) round_rows(RoundOnGpuCall call) {
  const int32_t kv_row = call.kv_rows[blockIdx.x];
  if (kv_row < 0) return;
  const int64_t line = call.first_line + int64_t{blockIdx.y} * call.line_step;
  const int64_t token = line * call.block_tokens + kv_row % call.block_tokens;
  auto* row = reinterpret_cast<Bf16x8*>(call.base + kv_row / call.block_tokens * call.stride_bytes +
                                        token * call.head_dim * 2);
  const bool active = static_cast<int32_t>(threadIdx.x) < call.head_dim / 8;
  const Bf16x8 piece = active ? row[threadIdx.x] : Bf16x8{};
  uint32_t largest = cuda::largest_magnitude(piece, 0);
  for (int step = 16; step > 0; step /= 2) {
    largest = max(largest, __shfl_xor_sync(cuda::kFullWarp, largest, step));
  }
  const uint32_t scale = cuda::scale_of_row<kElement>(largest);
  if (active) {
    row[threadIdx.x] = cuda::turn_codes(call.codec, cuda::round_numbers<kElement>(piece, scale),
                                        cuda::row_factors(call.codec, scale));
  }
}

}  // namespace

void round_on_gpu(Stream& stream, const RopeAndWriteKvArgs& args, KvElement element,
                  bool rounds_keys) {
  const KvBlockShape& shape = args.kv.shape;
  const RoundOnGpuCall call{.base = args.kv.base,
                            .stride_bytes = static_cast<int64_t>(args.kv.stride_bytes),
                            .kv_rows = args.kv_rows.data<int32_t>(),
                            .block_tokens = shape.block_tokens,
                            .head_dim = shape.head_dim,
                            .first_line = rounds_keys ? 0 : 1,
                            .line_step = rounds_keys ? 1 : 2,
                            .codec = cuda::kv_codec(element)};
  const dim3 grid(static_cast<unsigned>(args.kv_rows.dim(0)),
                  static_cast<unsigned>((rounds_keys ? 2 : 1) * shape.num_kv_heads));
  if (grid.x == 0) return;
  const auto kernel =
      element == KvElement::kInt8 ? round_rows<KvElement::kInt8> : round_rows<KvElement::kE4m3>;
  as_cuda(stream).submit("round KV",
                         [&](cudaStream_t handle) { kernel<<<grid, 32, 0, handle>>>(call); });
}

}  // namespace sluice::testing
