// gather_columns on CUDA: a warp copies the key and the value of a column.
//
// Bound: reads of single rows. Positions are read by the kernel, which skips columns of other runs.
// Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/key_run.cuh"
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
};

// grid: columns of a segment, a warp each; then segments; then KV heads.
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
  const Bf16x8* key = nullptr;  // zeros
  if (column < count) {
    const int32_t position = call.positions[list * call.max_columns + column];
    if (position < kv_begin || position >= *run.kv_end) return;
    key = reinterpret_cast<const Bf16x8*>(key_of_run(run, kv_begin, kv_head, position));
  }
  const int32_t row_pieces = run.head_dim / 8;  // of 16 bytes
  const int64_t first_row =
      (static_cast<int64_t>(segment) * run.num_kv_heads + kv_head) * 2 * call.max_columns + column;
  auto* to = reinterpret_cast<Bf16x8*>(call.kv) + first_row * row_pieces;
  for (int32_t i = lane; i < 2 * row_pieces; i += kWarpThreads) {
    const bool is_value = i >= row_pieces;
    const int64_t piece = is_value ? i - row_pieces : i;
    const int64_t from =
        piece + (is_value ? static_cast<int64_t>(run.block_tokens) * row_pieces : 0);
    to[piece + (is_value ? static_cast<int64_t>(call.max_columns) * row_pieces : 0)] =
        key != nullptr ? key[from] : Bf16x8{};
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
                        .first_entry = args.first_segment - columns.first_segment};
  check_key_run("gather_columns", stream, args.kv);
  if (args.num_segments == 0 || call.max_columns == 0) return;
  stream.submit("gather_columns", [&](cudaStream_t handle) {
    const dim3 grid(static_cast<unsigned>((call.max_columns + kWarps - 1) / kWarps),
                    static_cast<unsigned>(args.num_segments),
                    static_cast<unsigned>(call.run.num_kv_heads));
    gather_columns_kernel<<<grid, kWarps * kWarpThreads, 0, handle>>>(call);
  });
}

}  // namespace sluice::cuda
