// out [m, n] = x [m, k] * weight [n, k]^T with weights in integers of 4 bits: for at most 16 rows,
// and the conversion to bf16 for more.
//
// Bound: bytes, n k / 2, the weight once. Tile: that of skinny_ring.cuh, with uint4_codec.cuh.
// Thread rule: enqueue only.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/uint4.h"
#include "ops/cuda/matmul/uint4_codec.cuh"

namespace sluice::cuda {
namespace {

void launch(CudaStream& stream, const Uint4Call& call, DType out) {
  call.layout.group_cols == kGroup ? launch_skinny_codes<Uint4Codec<true>>(stream, call, out)
                                   : launch_skinny_codes<Uint4Codec<false>>(stream, call, out);
}

// The integer of a column, less its zero point, times its scale.
__device__ inline float value_of(const Uint4Call& call, int64_t row, int column) {
  const int in_word = column % kWordColumns;
  const uint32_t bits = call.word(row, column - in_word);
  const int q = static_cast<int>(bits >> (in_word % 2 * 16 + in_word / 2 * 4) & 15u);
  const int64_t at = call.value_index(row, column / call.layout.group_cols);
  return static_cast<float>(q - call.zeros()[at]) * call.scales()[at];
}

// One warp per element of out: lanes take every 32nd column, then add up.
template <typename Out>
__global__ void __launch_bounds__(128) any_uint4_product(const __grid_constant__ Uint4Call all) {
  const SkinnyCall& call = all.product;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / kWarpThreads;
  const int64_t row = index / call.n;
  const int64_t n = index % call.n;
  if (row >= call.m) return;
  const uint16_t* x = call.x + row * call.k;
  float sum = 0.0f;
  for (int i = threadIdx.x % kWarpThreads; i < call.k; i += kWarpThreads) {
    sum += bf16_to_float(x[i]) * value_of(all, n, i);
  }
  sum = group_sum<kWarpThreads>(sum);
  if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
  if (threadIdx.x % kWarpThreads == 0) store(static_cast<Out*>(call.out) + index, sum);
}

struct ConvertCall {
  Uint4Call weight;  // the first one
  int64_t stride;    // bytes from a weight to the next
  uint16_t* to;
  int64_t num_words;  // of a weight
  int64_t first_row;  // of the weight
};

// grid: (parts of a weight, weights). A thread converts the eight columns of a word.
__global__ void __launch_bounds__(256) convert_words(const __grid_constant__ ConvertCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (index >= call.num_words) return;
  Uint4Call weight = call.weight;
  weight.product.weight =
      static_cast<const std::byte*>(weight.product.weight) + blockIdx.y * call.stride;
  const int32_t words_per_row = weight.product.k / kWordColumns;
  const int64_t row = call.first_row + index / words_per_row;
  const auto column = static_cast<int32_t>(index % words_per_row) * kWordColumns;
  const uint32_t bits = weight.word(row, column);
  const int64_t at = weight.value_index(row, column / weight.layout.group_cols);
  const float scale = weight.scales()[at];
  const int zero = weight.zeros()[at];
  float values[kWordColumns];
#pragma unroll
  for (int i = 0; i < kWordColumns; ++i) {
    const int q = static_cast<int>(bits >> (i % 2 * 16 + i / 2 * 4) & 15u);
    values[i] = static_cast<float>(q - zero) * scale;
  }
  reinterpret_cast<Bf16x8*>(call.to)[blockIdx.y * call.num_words + index] = pack(values);
}

Uint4Call make_call(const MatmulArgs& args) {
  const PackedWeight& weight = args.weight;
  return {.product = {.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
                      .weight = weight.data,
                      .bias = reinterpret_cast<const uint16_t*>(args.bias.bytes()),
                      .out = args.out.bytes(),
                      .m = args.x.present() ? static_cast<int32_t>(args.x.dim(0)) : 0,
                      .n = static_cast<int32_t>(weight.num_rows),
                      .k = static_cast<int32_t>(weight.num_cols),
                      .gated = 0},
          .layout = uint4_layout(weight.format, weight.num_rows, weight.num_cols)};
}

}  // namespace

void matmul_skinny_uint4(CudaStream& stream, const MatmulArgs& args) {
  launch(stream, make_call(args), args.out.dtype());
}

void gated_skinny_uint4(CudaStream& stream, const GatedProductArgs& args) {
  Uint4Call call = make_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.product.gated = static_cast<int32_t>(args.out.dim(1));
  launch(stream, call, DType::kBF16);
}

void matmul_any_uint4(CudaStream& stream, const MatmulArgs& args) {
  const auto num_blocks = static_cast<unsigned>((args.out.num_elements() + 3) / 4);
  const bool is_f32 = args.out.dtype() == DType::kF32;
  (is_f32 ? any_uint4_product<float>
          : any_uint4_product<uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(make_call(args));
}

void convert_uint4(CudaStream& stream, const ConvertArgs& args) {
  const ConvertCall call = {
      .weight = make_call({.x = {}, .weight = args.weight, .bias = {}, .out = {}}),
      .stride = static_cast<int64_t>(args.stride_bytes),
      .to = reinterpret_cast<uint16_t*>(args.to),
      .num_words = args.num_rows * args.weight.num_cols / kWordColumns,
      .first_row = args.row_begin};
  const dim3 grid(static_cast<unsigned>((call.num_words + 255) / 256),
                  static_cast<unsigned>(args.num_weights));
  convert_words<<<grid, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
