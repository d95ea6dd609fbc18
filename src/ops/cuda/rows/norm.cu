// RMSNorm on CUDA: a row stays in registers between its one read and its one write.
//
// Bound: bytes, 4 per element, 8 with a residual (two reads, two writes); latency with few rows.
// Tile: one row per 32 to 512 threads, up to 4 vectors of 16 bytes a thread. Share: 90 to 96 % of a
// device-to-device copy with many rows (docs/kernels/cuda_ops.md). Thread rule: enqueue only.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/rows/norm_row.cuh"

namespace sluice::cuda {
namespace {

// RmsNormArgs as plain pointers and sizes.
struct NormCall {
  const uint16_t* x;       // bf16 [num_rows][hidden]
  uint16_t* residual;      // the same shape, updated in place; or null
  const uint16_t* weight;  // bf16 [hidden]
  uint16_t* out;           // as x, and may be x
  int64_t num_rows;
  int32_t hidden;
  float one_over_hidden;
  float eps;
  float offset;  // added to the weight
};

constexpr int kBlockThreads = 256;  // of blocks with several rows, of kRowThreads threads each

// `kRowThreads` threads hold a row of up to kRowThreads * 4 vectors. The threads of a row and their
// order of addition depend on `hidden` alone, so a row has the same bits in every batch.
template <int kRowThreads>
__global__ void __launch_bounds__(kRowThreads > kBlockThreads ? kRowThreads : kBlockThreads)
    norm_rows(NormCall call) {
  constexpr int kRowsPerBlock = kRowThreads > kBlockThreads ? 1 : kBlockThreads / kRowThreads;
  __shared__ float partials[kRowsPerBlock][kRowThreads / kWarpThreads];
  const int thread = threadIdx.x % kRowThreads;
  const int row_of_block = threadIdx.x / kRowThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsPerBlock + row_of_block;
  const bool exists = row < call.num_rows;  // false in the last block only
  const int num_vectors = call.hidden / 8;
  const int64_t offset = row * num_vectors;
  const auto* x = reinterpret_cast<const Bf16x8*>(call.x) + offset;
  auto* residual = reinterpret_cast<Bf16x8*>(call.residual) + offset;

  let_next_kernel_start();
  // All loads first, the weight's even before x exists (early_launch.cuh).
  const auto* weight_vectors = reinterpret_cast<const Bf16x8*>(call.weight);
  Bf16x8 weights[kNormVectors] = {};
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int index = thread + v * kRowThreads;
    if (index < num_vectors) weights[v] = weight_vectors[index];
  }
  wait_for_earlier_work();
  Bf16x8 rows[kNormVectors] = {};
  Bf16x8 old[kNormVectors] = {};
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int index = thread + v * kRowThreads;
    if (!exists || index >= num_vectors) continue;
    rows[v] = x[index];
    if (call.residual != nullptr) old[v] = residual[index];
  }

  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    if (call.residual != nullptr) {
      // The norm reads the rounded sum, as the next layer does (ops/rows/norm.h).
      rows[v] = add_rounded(old[v], rows[v]);
      const int index = thread + v * kRowThreads;
      if (exists && index < num_vectors) residual[index] = rows[v];
    }
    squares = __fadd_rn(squares, vector_squares(rows[v]));
  }
  // Threads of rows that do not exist take part, with zeros, since the sum has a barrier.
  squares = row_sum<kRowThreads>(squares, partials[row_of_block]);
  const float scale = norm_scale(squares, call.one_over_hidden, call.eps);

  auto* out = reinterpret_cast<Bf16x8*>(call.out) + offset;
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int index = thread + v * kRowThreads;
    if (exists && index < num_vectors) out[index] = scaled(rows[v], weights[v], scale, call.offset);
  }
}

// Few rows that norm_rows<32> would give to one warp each. Here a thread has one vector instead of
// four, which shortens the latency of a decode step. The same sums in the same order.
constexpr int kFewRows = 16;
constexpr int kFewRowThreads = kWarpThreads * kNormVectors;

__global__ void __launch_bounds__(kFewRowThreads) norm_few_rows(NormCall call) {
  __shared__ float squares[kFewRowThreads];
  const int num_vectors = call.hidden / 8;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * num_vectors + threadIdx.x;
  const bool exists = static_cast<int>(threadIdx.x) < num_vectors;
  let_next_kernel_start();
  Bf16x8 weight = {};
  if (exists) weight = reinterpret_cast<const Bf16x8*>(call.weight)[threadIdx.x];
  wait_for_earlier_work();
  Bf16x8 row = {};
  if (exists) {
    row = reinterpret_cast<const Bf16x8*>(call.x)[index];
    if (call.residual != nullptr) {
      auto* residual = reinterpret_cast<Bf16x8*>(call.residual) + index;
      row = add_rounded(*residual, row);
      *residual = row;
    }
  }
  squares[threadIdx.x] = vector_squares(row);
  __syncthreads();
  // Thread t adds the vectors that lane t of norm_rows<32> holds; all warps compute the same sum.
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    sum = __fadd_rn(sum, squares[threadIdx.x % kWarpThreads + v * kWarpThreads]);
  }
  sum = group_sum<kWarpThreads>(sum);
  const float scale = norm_scale(sum, call.one_over_hidden, call.eps);
  if (exists) reinterpret_cast<Bf16x8*>(call.out)[index] = scaled(row, weight, scale, call.offset);
}

// Any hidden size at any alignment, one block a row, two passes: slow, for unusual shapes.
// A thread writes only elements that it alone reads, so `out` may be `x` here too.
__global__ void __launch_bounds__(kBlockThreads) norm_rows_any(NormCall call) {
  __shared__ float partials[kBlockThreads / kWarpThreads];
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * call.hidden;
  const uint16_t* x = call.x + offset;
  uint16_t* residual = call.residual + offset;
  let_next_kernel_start();
  wait_for_earlier_work();
  float squares = 0.0f;
  for (int i = threadIdx.x; i < call.hidden; i += kBlockThreads) {
    float value = bf16_to_float(x[i]);
    if (call.residual != nullptr) {
      residual[i] = float_to_bf16(bf16_to_float(residual[i]) + value);
      value = bf16_to_float(residual[i]);
    }
    squares += value * value;
  }
  squares = row_sum<kBlockThreads>(squares, partials);
  const float scale = norm_scale(squares, call.one_over_hidden, call.eps);
  // The second pass reads what the first left: the updated residual, or x.
  const uint16_t* source = call.residual != nullptr ? residual : x;
  for (int i = threadIdx.x; i < call.hidden; i += kBlockThreads) {
    const float value = bf16_to_float(source[i]) * scale;
    call.out[offset + i] = float_to_bf16((call.offset + bf16_to_float(call.weight[i])) * value);
  }
}

// Blocks of at least kBlockThreads threads, with as many rows as that takes.
template <int kRowThreads>
void launch_rows(CudaStream& stream, const NormCall& call) {
  constexpr int kThreads = kRowThreads > kBlockThreads ? kRowThreads : kBlockThreads;
  constexpr int kRowsPerBlock = kThreads / kRowThreads;
  const int64_t num_blocks = (call.num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  launch_early(stream, norm_rows<kRowThreads>,
               {dim3(static_cast<unsigned>(num_blocks)), dim3(kThreads)}, call);
}

// A row beyond 16,384 elements or without vectors goes to norm_rows_any. The choice of
// norm_few_rows changes no bit.
void launch(CudaStream& stream, const NormCall& call) {
  // is_aligned(null) is true: a call without residual can have vectors.
  const bool vectors = call.hidden % 8 == 0 && is_aligned(call.x) && is_aligned(call.residual) &&
                       is_aligned(call.weight) && is_aligned(call.out);
  if (!vectors || call.hidden > kMaxNormThreads * kNormVectors * 8) {
    return launch_early(stream, norm_rows_any,
                        {dim3(static_cast<unsigned>(call.num_rows)), dim3(kBlockThreads)}, call);
  }
  switch (norm_row_threads(call.hidden)) {
    case 32:
      if (call.num_rows <= kFewRows) {
        return launch_early(stream, norm_few_rows,
                            {dim3(static_cast<unsigned>(call.num_rows)), dim3(kFewRowThreads)},
                            call);
      }
      return launch_rows<32>(stream, call);
    case 128:
      return launch_rows<128>(stream, call);
    case 256:
      return launch_rows<256>(stream, call);
    default:
      return launch_rows<kMaxNormThreads>(stream, call);
  }
}

}  // namespace

void CudaOps::rms_norm(Stream& on, const RmsNormArgs& args) const {
  CudaStream& stream = as_cuda(on);
  const NormCall call{
      .x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .residual = reinterpret_cast<uint16_t*>(args.residual.bytes()),
      .weight = reinterpret_cast<const uint16_t*>(args.weight.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.x.dim(0),
      .hidden = static_cast<int32_t>(args.x.dim(1)),
      .one_over_hidden = 1.0f / static_cast<float>(args.x.dim(1)),
      .eps = args.eps,
      .offset = args.weight_offset,
  };
  if (call.num_rows == 0) return;
  stream.submit("rms_norm", [&](cudaStream_t) { launch(stream, call); });
}

}  // namespace sluice::cuda
