// Bound: bytes, 2 read and 1 written for a number. A thread takes 8 columns at a time; 16 threads
// have a group of 128 columns, and a block has a row where a row has one scale.
#include <cuda_fp8.h>

#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/matmul/quantize_rows.h"

namespace sluice::cuda {
namespace {

constexpr float kLargestE4m3 = 448.0f;
constexpr int kThreads = 256;
constexpr int kLaneColumns = 8;
constexpr int kGroupLanes = kScaleGroup / kLaneColumns;

struct QuantizeCall {
  const uint16_t* x;
  RowsOfPairs from;
  uint2* codes;  // of 8 columns
  float* scales;
  int64_t num_rows;
  int32_t k;

  __device__ int64_t source(int64_t row) const {
    return from.pairs == nullptr ? row : from.pairs[row] / from.num_slots;
  }
};

__device__ inline float largest_of(const float (&values)[kLaneColumns]) {
  float largest = 0.0f;
#pragma unroll
  for (const float value : values) largest = fmaxf(largest, fabsf(value));
  return largest;
}

// A row with an infinity becomes NaN, as infinity over infinity; fmaxf leaves NaN out, which stays
// NaN as e4m3.
__device__ inline float scale_of(float largest) {
  return largest > 0.0f ? largest / kLargestE4m3 : 1.0f;
}

__device__ inline uint2 quantize(const float (&values)[kLaneColumns], float scale) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = {values[2 * i] / scale, values[2 * i + 1] / scale};
    pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

// A scale for each group: 16 threads agree on the largest number by shuffles.
__global__ void __launch_bounds__(kThreads) quantize_groups(QuantizeCall call) {
  let_next_kernel_start();
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t pieces_per_row = call.k / kLaneColumns;
  const int64_t row = piece / pieces_per_row;
  const auto group = static_cast<int32_t>(piece % pieces_per_row / kGroupLanes);
  wait_for_earlier_work();
  if (row >= call.num_rows) return;  // of whole groups: k is a multiple of 128
  float values[kLaneColumns];
  const int64_t source = call.source(row) * pieces_per_row + piece % pieces_per_row;
  unpack(reinterpret_cast<const Bf16x8*>(call.x)[source], values);
  float largest = largest_of(values);
#pragma unroll
  for (int step = kGroupLanes / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(__activemask(), largest, step, kGroupLanes));
  }
  const float scale = scale_of(largest);
  call.codes[piece] = quantize(values, scale);
  if (threadIdx.x % kGroupLanes == 0) call.scales[group * call.num_rows + row] = scale;
}

// grid: rows. A row is read twice, the second time from the cache: it is too long for registers.
__global__ void __launch_bounds__(kThreads) quantize_whole_rows(QuantizeCall call) {
  let_next_kernel_start();
  const int64_t pieces_per_row = call.k / kLaneColumns;
  __shared__ float of_warps[kThreads / kWarpThreads];
  wait_for_earlier_work();
  const auto* x =
      reinterpret_cast<const Bf16x8*>(call.x) + call.source(blockIdx.x) * pieces_per_row;
  float values[kLaneColumns];
  float largest = 0.0f;
  for (int64_t piece = threadIdx.x; piece < pieces_per_row; piece += kThreads) {
    unpack(x[piece], values);
    largest = fmaxf(largest, largest_of(values));
  }
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
  }
  if (threadIdx.x % kWarpThreads == 0) of_warps[threadIdx.x / kWarpThreads] = largest;
  __syncthreads();
#pragma unroll
  for (const float of_warp : of_warps) largest = fmaxf(largest, of_warp);
  const float scale = scale_of(largest);
  for (int64_t piece = threadIdx.x; piece < pieces_per_row; piece += kThreads) {
    unpack(x[piece], values);
    call.codes[blockIdx.x * pieces_per_row + piece] = quantize(values, scale);
  }
  if (threadIdx.x == 0) call.scales[blockIdx.x] = scale;
}

}  // namespace

void quantize_rows(CudaStream& stream, WeightFormat format, const TensorView& x,
                   const QuantizedRows& to, const RowsOfPairs& from) {
  const QuantizeCall call = {.x = reinterpret_cast<const uint16_t*>(x.bytes()),
                             .from = from,
                             .codes = reinterpret_cast<uint2*>(to.codes),
                             .scales = to.scales,
                             .num_rows = from.pairs == nullptr ? x.dim(0) : from.num_pairs,
                             .k = static_cast<int32_t>(x.dim(1))};
  if (format == WeightFormat::kE4m3Rows) {
    const dim3 grid(static_cast<unsigned>(call.num_rows));
    return launch_early(stream, quantize_whole_rows, {grid, dim3(kThreads)}, call);
  }
  const int64_t num_pieces = call.num_rows * (call.k / kLaneColumns);
  const dim3 grid(static_cast<unsigned>((num_pieces + kThreads - 1) / kThreads));
  launch_early(stream, quantize_groups, {grid, dim3(kThreads)}, call);
}

}  // namespace sluice::cuda
