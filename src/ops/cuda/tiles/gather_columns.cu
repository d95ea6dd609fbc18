// gather_columns on CUDA: a warp copies the key and the value of a column.
//
// Bound: reads of single rows. Positions are read by the kernel, which skips columns of other runs.
// Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/kv_piece.cuh"
#include "ops/cuda/tiles/key_run.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8;

// GatherColumnsArgs as plain pointers and sizes.
struct GatherCall {
  KeyRunCall run;
  const int32_t* positions;  // [num_list_heads][num_segments][max_columns]
  const int32_t* count;      // [num_list_heads][num_segments]
  uint16_t* kv;              // [num_segments][num_kv_heads][2][max_columns][head_dim]
  int32_t num_list_heads;
  int32_t num_segments;  // of columns
  int32_t max_columns;
  int32_t first_entry;
  int64_t key_bytes;  // of a KV head in a block
  KvCodec codec;      // of blocks in codes
};

// Piece `piece` of the key, or the value, of a token.
template <bool kCoded>
__device__ inline Bf16x8 read_piece(const GatherCall& call, const std::byte* half, int32_t token,
                                    int32_t piece) {
  KvPiece<kCoded> loaded;
  loaded.load(half, token, piece * 8, call.run.head_dim);
  return loaded.values(call.codec);
}

// grid: columns of a segment, a warp each; then segments; then KV heads.
template <KvCodes kCodes>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    gather_columns_kernel(const GatherCall call) {
  const KeyRunCall& run = call.run;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const auto column = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / kWarpThreads);
  const auto segment = call.first_entry + static_cast<int32_t>(blockIdx.y);
  const auto kv_head = static_cast<int32_t>(blockIdx.z);
  const int32_t list_head = call.num_list_heads == 1 ? 0 : kv_head;
  const int64_t list = static_cast<int64_t>(list_head) * call.num_segments + segment;
  const int32_t count = call.count[list];
  const int32_t padded = (count + kMaskTileTokens - 1) / kMaskTileTokens * kMaskTileTokens;
  if (column >= min(padded, call.max_columns)) return;

  const int32_t kv_begin = *run.kv_begin;
  const std::byte* keys = nullptr;  // of the head in the token's block; zeros
  int32_t token = 0;
  if (column < count) {
    const int32_t position = call.positions[list * call.max_columns + column];
    if (position < kv_begin || position >= *run.kv_end) return;
    const int64_t block = run.block_table[(position - kv_begin) / run.block_tokens];
    keys = run.kv_base + block * run.kv_stride_bytes + kv_head * run.head_elements * 2;
    token = position % run.block_tokens;
  }
  const int32_t row_pieces = run.head_dim / 8;  // of 16 bytes
  const int64_t first_row =
      (static_cast<int64_t>(segment) * run.num_kv_heads + kv_head) * 2 * call.max_columns + column;
  auto* to = reinterpret_cast<Bf16x8*>(call.kv) + first_row * row_pieces;
  for (int32_t i = lane; i < 2 * row_pieces; i += kWarpThreads) {
    const bool is_value = i >= row_pieces;
    const int32_t piece = is_value ? i - row_pieces : i;
    Bf16x8 numbers{};
    if (keys != nullptr) {
      const std::byte* half = keys + (is_value ? call.key_bytes : 0);
      numbers = kHasCodedValues<kCodes> && (is_value || kHasCodedKeys<kCodes>)
                    ? read_piece<true>(call, half, token, piece)
                    : read_piece<false>(call, half, token, piece);
    }
    to[piece + (is_value ? static_cast<int64_t>(call.max_columns) * row_pieces : 0)] = numbers;
  }
}

}  // namespace

void CudaOps::gather_columns(Stream& on, const GatherColumnsArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const TileColumns& columns = args.columns;
  const GatherCall call{.run = key_run_of(args),
                        .positions = columns.positions.data<int32_t>(),
                        .count = columns.count.data<int32_t>(),
                        .kv = reinterpret_cast<uint16_t*>(columns.kv.bytes()),
                        .num_list_heads = static_cast<int32_t>(columns.positions.dim(0)),
                        .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
                        .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
                        .first_entry = args.first_segment - columns.first_segment,
                        .key_bytes = static_cast<int64_t>(args.kv.shape.keys().bytes()),
                        .codec = kv_codec(args.kv.shape.element)};
  check_key_run("gather_columns", stream, args.kv);
  if (args.num_segments == 0 || call.max_columns == 0) return;
  stream.submit("gather_columns", [&](cudaStream_t handle) {
    const dim3 grid(static_cast<unsigned>((call.max_columns + kWarps - 1) / kWarps),
                    static_cast<unsigned>(args.num_segments),
                    static_cast<unsigned>(call.run.num_kv_heads));
    const KvCodes codes = kv_codes(args.kv.shape);
    const auto kernel = codes == KvCodes::kNone     ? gather_columns_kernel<KvCodes::kNone>
                        : codes == KvCodes::kValues ? gather_columns_kernel<KvCodes::kValues>
                                                    : gather_columns_kernel<KvCodes::kAll>;
    kernel<<<grid, kWarps * kWarpThreads, 0, handle>>>(call);
  });
}

}  // namespace sluice::cuda
