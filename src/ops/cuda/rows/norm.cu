// RMSNorm on CUDA: a row stays in registers between its one read and its one write.
//
// Bound: bytes, 4 per element, 8 with a residual (two reads, two writes); latency with few rows.
// Tile: one row per 32 to 512 threads, up to 4 vectors of 16 bytes a thread. Share: 90 to 96 % of a
// device-to-device copy with many rows (docs/kernels/cuda_ops.md). Thread rule: enqueue only.
#include "device/cuda/cuda_collectives.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "device/cuda/peer_lines.cuh"
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

// The part of a row's thread, of up to kNormVectors vectors.
struct RowPart {
  Bf16x8 weights[kNormVectors] = {};
  Bf16x8 rows[kNormVectors] = {};  // of x
  Bf16x8 old[kNormVectors] = {};   // of the residual
};

// The norm of a row whose x, residual and weight are in registers. `exists` is false of threads
// without a row, which take part with zeros, since the sum has a barrier.
template <int kRowThreads>
__device__ void norm_row(const NormCall& call, int64_t row, bool exists, RowPart& part,
                         float* partials) {
  const int thread = threadIdx.x % kRowThreads;
  const int num_vectors = call.hidden / 8;
  auto* residual = reinterpret_cast<Bf16x8*>(call.residual) + row * num_vectors;
  float squares = 0.0f;
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    Bf16x8& vector = part.rows[v];
    if (call.residual != nullptr) {
      // The norm reads the rounded sum, as the next layer does (ops/rows/norm.h).
      vector = add_rounded(part.old[v], vector);
      const int index = thread + v * kRowThreads;
      if (exists && index < num_vectors) residual[index] = vector;
    }
    squares = __fadd_rn(squares, vector_squares(vector));
  }
  squares = row_sum<kRowThreads>(squares, partials);
  const float scale = norm_scale(squares, call.one_over_hidden, call.eps);

  auto* out = reinterpret_cast<Bf16x8*>(call.out) + row * num_vectors;
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int index = thread + v * kRowThreads;
    if (exists && index < num_vectors) {
      out[index] = scaled(part.rows[v], part.weights[v], scale, call.offset);
    }
  }
}

template <int kRowThreads>
__device__ void load_weights(const NormCall& call, RowPart& part) {
  const auto* weights = reinterpret_cast<const Bf16x8*>(call.weight);
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int index = threadIdx.x % kRowThreads + v * kRowThreads;
    if (index < call.hidden / 8) part.weights[v] = weights[index];
  }
}

// Blocks of at least kBlockThreads threads, with as many rows as that takes.
template <int kRowThreads>
constexpr int kThreadsOfBlock = kRowThreads > kBlockThreads ? kRowThreads : kBlockThreads;
template <int kRowThreads>
constexpr int kRowsOfBlock = kThreadsOfBlock<kRowThreads> / kRowThreads;

// `kRowThreads` threads hold a row of up to kRowThreads * 4 vectors. The threads of a row and their
// order of addition depend on `hidden` alone, so a row has the same bits in every batch.
template <int kRowThreads>
__global__ void __launch_bounds__(kThreadsOfBlock<kRowThreads>) norm_rows(NormCall call) {
  constexpr int kRows = kRowsOfBlock<kRowThreads>;
  __shared__ float partials[kRows][kRowThreads / kWarpThreads];
  const int thread = threadIdx.x % kRowThreads;
  const int row_of_block = threadIdx.x / kRowThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + row_of_block;
  const bool exists = row < call.num_rows;  // false in the last block only
  const int num_vectors = call.hidden / 8;
  const auto* x = reinterpret_cast<const Bf16x8*>(call.x) + row * num_vectors;
  const auto* residual = reinterpret_cast<const Bf16x8*>(call.residual) + row * num_vectors;

  let_next_kernel_start();
  // All loads first, the weight's even before x exists (early_launch.cuh).
  RowPart part;
  load_weights<kRowThreads>(call, part);
  wait_for_earlier_work();
#pragma unroll
  for (int v = 0; v < kNormVectors; ++v) {
    const int index = thread + v * kRowThreads;
    if (!exists || index >= num_vectors) continue;
    part.rows[v] = x[index];
    if (call.residual != nullptr) part.old[v] = residual[index];
  }
  norm_row<kRowThreads>(call, row, exists, part, partials[row_of_block]);
}

// The same of a sum over ranks, whose lines the threads of a row send and await. A decode step has
// two in each layer; a kernel of its own for the sum would add about 3 us to each.
struct SumNormCall {
  NormCall norm;
  Peers peers;
  CudaReport report;
};

template <int kRowThreads>
__global__ void __launch_bounds__(kThreadsOfBlock<kRowThreads>) sum_and_norm_rows(SumNormCall all) {
  constexpr int kRows = kRowsOfBlock<kRowThreads>;
  __shared__ float partials[kRows][kRowThreads / kWarpThreads];
  const NormCall& call = all.norm;
  const int thread = threadIdx.x % kRowThreads;
  const int row_of_block = threadIdx.x / kRowThreads;
  const int num_vectors = call.hidden / 8;

  let_next_kernel_start();
  RowPart part;
  load_weights<kRowThreads>(call, part);
  wait_for_earlier_work();
  LineSum lines(all.peers, all.report);
  // All rows of the block are sent before one is awaited, as LineSum requires; their second read
  // comes from the cache.
  const auto for_each_vector = [&](int64_t row, auto fn) {
#pragma unroll
    for (int v = 0; v < kNormVectors; ++v) {
      const int index = thread + v * kRowThreads;
      if (row < call.num_rows && index < num_vectors) fn(v, row * num_vectors + index);
    }
  };
  const auto* x = reinterpret_cast<const uint4*>(call.x);
  constexpr int64_t kStep = int64_t{kLineBlocks} * kRows;
  const int64_t first = int64_t{blockIdx.x} * kRows;
  for (int64_t begin = first; begin < call.num_rows; begin += kStep) {
    for_each_vector(begin + row_of_block, [&](int, int64_t index) {
      const uint4 own = x[index];
      lines.send(2 * index, {own.x, own.y});
      lines.send(2 * index + 1, {own.z, own.w});
    });
  }
  for (int64_t begin = first; begin < call.num_rows; begin += kStep) {
    const int64_t row = begin + row_of_block;
    for_each_vector(row, [&](int v, int64_t index) {
      if (call.residual != nullptr) {
        part.old[v] = reinterpret_cast<const Bf16x8*>(call.residual)[index];
      }
      const uint4 own = x[index];
      const uint2 low = lines.sum(2 * index, {own.x, own.y});
      const uint2 high = lines.sum(2 * index + 1, {own.z, own.w});
      part.rows[v] = {{low.x, low.y, high.x, high.y}};
    });
    norm_row<kRowThreads>(call, row, row < call.num_rows, part, partials[row_of_block]);
    __syncthreads();  // before the next row's partials
  }
  __syncthreads();
  lines.finish();
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

template <int kRowThreads>
void launch_rows(CudaStream& stream, const NormCall& call) {
  constexpr int kRows = kRowsOfBlock<kRowThreads>;
  const int64_t num_blocks = (call.num_rows + kRows - 1) / kRows;
  launch_early(stream, norm_rows<kRowThreads>,
               {dim3(static_cast<unsigned>(num_blocks)), dim3(kThreadsOfBlock<kRowThreads>)}, call);
}

// is_aligned(null) is true: a call without residual can have vectors.
bool has_vectors(const NormCall& call) {
  return call.hidden % 8 == 0 && is_aligned(call.x) && is_aligned(call.residual) &&
         is_aligned(call.weight) && is_aligned(call.out) &&
         call.hidden <= kMaxNormThreads * kNormVectors * 8;
}

// Calls fn.operator()<kRowThreads>() for the threads that a row takes.
template <typename Fn>
void with_row_threads(int64_t hidden, const Fn& fn) {
  switch (norm_row_threads(hidden)) {
    case 32:
      return fn.template operator()<32>();
    case 128:
      return fn.template operator()<128>();
    case 256:
      return fn.template operator()<256>();
    default:
      return fn.template operator()<kMaxNormThreads>();
  }
}

// A row beyond 16,384 elements or without vectors goes to norm_rows_any. The choice of
// norm_few_rows changes no bit.
void launch(CudaStream& stream, const NormCall& call) {
  const dim3 rows(static_cast<unsigned>(call.num_rows));
  if (!has_vectors(call)) {
    return launch_early(stream, norm_rows_any, {rows, dim3(kBlockThreads)}, call);
  }
  if (norm_row_threads(call.hidden) == 32 && call.num_rows <= kFewRows) {
    return launch_early(stream, norm_few_rows, {rows, dim3(kFewRowThreads)}, call);
  }
  with_row_threads(call.hidden, [&]<int kRowThreads>() { launch_rows<kRowThreads>(stream, call); });
}

// Whether a message is small enough for lines; a larger one is summed before the norm.
bool fits_lines(const NormCall& call) {
  return call.num_rows * call.hidden * 2 <= kMaxLineBytes && has_vectors(call);
}

void launch_sum(CudaStream& stream, const SumNormCall& call) {
  with_row_threads(call.norm.hidden, [&]<int kRowThreads>() {
    launch_early(stream, sum_and_norm_rows<kRowThreads>,
                 {dim3(kLineBlocks), dim3(kThreadsOfBlock<kRowThreads>)}, call);
  });
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
  if (args.ranks != nullptr && fits_lines(call)) {
    constexpr const char* kName = "sum_and_norm";
    return stream.submit(kName, [&](cudaStream_t) {
      launch_sum(stream, {.norm = call,
                          .peers = as_cuda(*args.ranks).peers(args.x),
                          .report = CudaCollectives::report(stream, kName)});
    });
  }
  if (args.ranks != nullptr) args.ranks->sum(on, args.x);
  stream.submit("rms_norm", [&](cudaStream_t) { launch(stream, call); });
}

}  // namespace sluice::cuda
