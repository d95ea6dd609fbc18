// Rows by index: a packed weight on CUDA is the matrix itself, row by row
// (ops/cuda/matmul/matmul.cc), so an embedding is the copy of a row. Thread rule: enqueue only.
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows/copy_rows.h"

namespace sluice::cuda {
namespace {

constexpr int kCopyThreads = 128;
constexpr int kElementsPerBlock = kCopyThreads * 8;  // of one row: one vector per thread

// Bound: bytes, 4 per element. Tile: 1024 elements of one row a block, 16 bytes a thread. Share: 73
// % of a device-to-device copy for many random rows. grid: rows x pieces of a row.
template <typename Piece>
__global__ void __launch_bounds__(kCopyThreads) copy_pieces(CopyRowsCall call) {
  constexpr int64_t kPerPiece = sizeof(Piece) / sizeof(uint16_t);
  const int64_t row = blockIdx.x;
  let_next_kernel_start();
  wait_for_earlier_work();
  const int32_t index = call.indices[row];
  const bool known = index >= 0 && index < call.table_rows;
  if (!known && threadIdx.x == 0 && blockIdx.y == 0) fail_row(call.report, row);
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kElementsPerBlock;
  const int64_t end = min(call.width, begin + kElementsPerBlock);
  for (int64_t i = begin + threadIdx.x * kPerPiece; i < end; i += kCopyThreads * kPerPiece) {
    Piece piece = {};  // zeros for an unknown index: later kernels get finite numbers
    if (known) piece = *reinterpret_cast<const Piece*>(call.table + index * call.width + i);
    *reinterpret_cast<Piece*>(call.out + row * call.width + i) = piece;
  }
}

}  // namespace

void copy_rows(CudaStream& stream, const CopyRowsCall& call) {
  if (call.num_indices * call.width == 0) return;
  // Without alignment for vectors, single elements, in eight turns.
  const bool vectors = call.width % 8 == 0 && is_aligned(call.table) && is_aligned(call.out);
  const dim3 grid(static_cast<unsigned>(call.num_indices),
                  static_cast<unsigned>((call.width + kElementsPerBlock - 1) / kElementsPerBlock));
  launch_early(stream, vectors ? copy_pieces<Bf16x8> : copy_pieces<uint16_t>,
               {grid, dim3(kCopyThreads)}, call);
}

void CudaOps::embedding(Stream& on, const EmbeddingArgs& args) const {
  expect_weight_format("embedding", args.table.format, WeightFormat::kBFloat16);
  CudaStream& stream = as_cuda(on);
  CopyRowsCall call{
      .table = reinterpret_cast<const uint16_t*>(args.table.data),
      .indices = args.token_ids.data<int32_t>(),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .table_rows = args.table.num_rows,
      .num_indices = args.token_ids.dim(0),
      .width = args.table.num_cols,
      .report = {},
  };
  stream.submit("embedding", [&](cudaStream_t) {
    call.report = stream.report("embedding", "token_ids[{}] is outside the table");
    copy_rows(stream, call);
  });
}

}  // namespace sluice::cuda
