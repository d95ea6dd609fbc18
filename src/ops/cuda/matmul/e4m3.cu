// Weights in e4m3: products of unusual shapes, and the conversion to bf16 for many rows.
//
// Bound: bytes. Tile: a warp an element of out; a thread eight columns of a row. Thread rule:
// enqueue only.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/e4m3_codec.cuh"

namespace sluice::cuda {
namespace {

// One warp per element of out: lanes take every 32nd column, then add up.
template <typename Out>
__global__ void __launch_bounds__(128) any_e4m3_product(SkinnyCall call, E4m3Scales scales) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / kWarpThreads;
  const int64_t row = index / call.n;
  const int64_t n = index % call.n;
  if (row >= call.m) return;
  const uint16_t* x = call.x + row * call.k;
  const uint8_t* weight = static_cast<const uint8_t*>(call.weight) + n * call.k;
  float sum = 0.0f;
  for (int i = threadIdx.x % kWarpThreads; i < call.k; i += kWarpThreads) {
    const float scale = *scales.of(n, i / kGroup);
    sum += bf16_to_float(x[i]) * read_e4m3(weight[i]) * scale;
  }
  sum = group_sum<kWarpThreads>(sum);
  if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
  if (threadIdx.x % kWarpThreads == 0) store(static_cast<Out*>(call.out) + index, sum);
}

struct ConvertCall {
  const uint8_t* codes;  // of the first row
  E4m3Scales scales;
  int64_t stride;  // bytes from a weight to the next
  uint16_t* to;
  int64_t num_pieces;  // of 8 columns, of a weight
  int32_t pieces_per_row;
  int64_t first_row;  // of the weight
};

// grid: (parts of a weight, weights). A thread converts 8 columns of a row.
__global__ void __launch_bounds__(256) convert_codes(const __grid_constant__ ConvertCall call) {
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (piece >= call.num_pieces) return;
  const int64_t offset = blockIdx.y * call.stride;
  const int64_t row = piece / call.pieces_per_row;
  const auto column = static_cast<int32_t>(piece % call.pieces_per_row) * 8;
  const float* scale_of_first = call.scales.of(call.first_row + row, column / kScaleGroup);
  const float scale =
      *reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(scale_of_first) + offset);
  const uint2 codes = *reinterpret_cast<const uint2*>(call.codes + offset + piece * 8);
  float values[8];
  unpack(read_e4m3(codes), values);
#pragma unroll
  for (float& value : values) value *= scale;
  reinterpret_cast<Bf16x8*>(call.to)[blockIdx.y * call.num_pieces + piece] = pack(values);
}

}  // namespace

void matmul_any_e4m3(CudaStream& stream, const MatmulArgs& args) {
  const SkinnyCall call = skinny_call(args);
  const auto num_blocks = static_cast<unsigned>((args.out.num_elements() + 3) / 4);
  const bool is_f32 = args.out.dtype() == DType::kF32;
  (is_f32 ? any_e4m3_product<float>
          : any_e4m3_product<uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(
      call, e4m3_scales_of(args.weight));
}

void convert_e4m3(CudaStream& stream, const ConvertArgs& args) {
  const PackedWeight& weight = args.weight;
  const ConvertCall call = {
      .codes = reinterpret_cast<const uint8_t*>(weight.data) + args.row_begin * weight.num_cols,
      .scales = e4m3_scales_of(weight),
      .stride = static_cast<int64_t>(args.stride_bytes),
      .to = reinterpret_cast<uint16_t*>(args.to),
      .num_pieces = args.num_rows * weight.num_cols / 8,
      .pieces_per_row = static_cast<int32_t>(weight.num_cols / 8),
      .first_row = args.row_begin};
  const dim3 grid(static_cast<unsigned>((call.num_pieces + 255) / 256),
                  static_cast<unsigned>(args.num_weights));
  convert_codes<<<grid, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
