// out [m, n] = x [m, k] * weight [n, k]^T with weights in GGUF's blocks: for at most 16 rows, and
// the conversion to bf16 for more.
//
// Bound: bytes, the weight once: n k / 2 or n k of codes, and 12 to 32 bytes of values for 128 of
// them. Tile: that of skinny_ring.cuh, with gguf_codec.cuh. Thread rule: enqueue only.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/gguf.h"
#include "ops/cuda/matmul/gguf_codec.cuh"

namespace sluice::cuda {
namespace {

void launch(CudaStream& stream, const GgufCall& call, DType out) {
  with_gguf_codec(call.layout,
                  [&]<typename Codec>() { launch_skinny_codes<Codec>(stream, call, out); });
}

// What a code is multiplied by, and what is subtracted then.
struct Values {
  float step;    // scale and factor: 19 bits, so exact
  float offset;  // min_scale and minimum, likewise

  __device__ float number(int q) const {  // one rounding, as a product of f32 is exact
    return __fmaf_rn(step, static_cast<float>(q), -offset);
  }
};

// Those of a column of a row, byte by byte: products of many rows and of unusual shapes have time
// for it, since a thread takes eight columns of a group.
__device__ inline Values values_of(const GgufCall& call, int row, int column) {
  const GgufLayout& layout = call.layout;
  const int in_group = column % kGroup;
  const auto bytes = [&](int word, int at) {
    return reinterpret_cast<const uint8_t*>(call.values(row, column / kGroup, word + at / 4)) +
           at % 4;
  };
  const auto scale_at = [&](int at) {
    return __half2float(*reinterpret_cast<const __half*>(bytes(layout.words.scales_at, at)));
  };
  const int of_values = in_group / layout.group_cols;
  const int block = in_group / layout.block_cols * (layout.has_minima ? 4 : 2);
  const float factor = static_cast<float>(*bytes(0, of_values) - 128);
  Values values = {.step = __fmul_rn(scale_at(block), factor), .offset = 0.0f};
  if (layout.has_minima) {
    const auto minimum = static_cast<float>(*bytes(layout.words.minima_at, of_values));
    values.offset = __fmul_rn(scale_at(block + 2), minimum);
  }
  return values;
}

// Eight codes of a row from a multiple of 8 columns on: a word, or one of each of two neighbouring
// lanes of the codec.
template <bool kIs4>
__device__ inline void read_codes(const GgufCall& call, int64_t row, int column,
                                  int (&codes)[kWordColumns]) {
  const auto* of_row =
      static_cast<const std::byte*>(call.product.weight) + row * call.layout.row_bytes;
  if constexpr (kIs4) {
    const int in_group = column % kGroup;
    const auto bits = *reinterpret_cast<const uint32_t*>(of_row + column / kGroup * 64 +
                                                         in_group % kWordGroup / kWordColumns * 16 +
                                                         in_group / kWordGroup * 4);
#pragma unroll
    for (int i = 0; i < kWordColumns; ++i) {
      codes[i] = static_cast<int>(bits >> (i % 2 * 16 + i / 2 * 4) & 15u);
    }
  } else {
    const auto* first = reinterpret_cast<const uint32_t*>(
        of_row + column / 64 * 64 + column % 16 / 4 * 16 + column % 64 / 16 * 4);
    const uint32_t words[2] = {first[0], first[4]};
#pragma unroll
    for (int i = 0; i < kWordColumns; ++i) {
      codes[i] = static_cast<int>(words[i / 4] >> (i % 4 * 8) & 255u) - 128;
    }
  }
}

// One warp per element of out: lanes take every 32nd eight of columns, then add up.
template <bool kIs4, typename Out>
__global__ void __launch_bounds__(128) any_gguf_product(const __grid_constant__ GgufCall all) {
  const SkinnyCall& call = all.product;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / kWarpThreads;
  const int64_t row = index / call.n;
  const auto n = static_cast<int>(index % call.n);
  if (row >= call.m) return;
  const uint16_t* x = call.x + row * call.k;
  float sum = 0.0f;
  const int first = static_cast<int>(threadIdx.x % kWarpThreads) * kWordColumns;
  for (int column = first; column < call.k; column += kWarpThreads * kWordColumns) {
    int codes[kWordColumns];
    read_codes<kIs4>(all, n, column, codes);
    const Values values = values_of(all, n, column);
#pragma unroll
    for (int i = 0; i < kWordColumns; ++i) {
      sum += bf16_to_float(x[column + i]) * values.number(codes[i]);
    }
  }
  sum = group_sum<kWarpThreads>(sum);
  if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
  if (threadIdx.x % kWarpThreads == 0) store(static_cast<Out*>(call.out) + index, sum);
}

// What a kernel of conversion gets: as ConvertArgs, which experts call for many weights.
struct ConvertCall {
  GgufCall weight;  // the first one
  int64_t stride;   // bytes from a weight to the next
  uint16_t* to;
  uint32_t num_eights;  // of columns, of a weight
  int32_t first_row;    // of the weight
};

// grid: (parts of a weight, weights). A thread converts eight columns.
template <bool kIs4>
__global__ void __launch_bounds__(256) convert_blocks(const __grid_constant__ ConvertCall call) {
  const uint32_t index = blockIdx.x * 256 + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (index >= call.num_eights) return;
  const GgufCall weight = call.weight.at(blockIdx.y * call.stride);
  const uint32_t eights_per_row = static_cast<uint32_t>(weight.product.k) / kWordColumns;
  const int row = call.first_row + static_cast<int>(index / eights_per_row);
  const int column = static_cast<int>(index % eights_per_row) * kWordColumns;
  int codes[kWordColumns];
  read_codes<kIs4>(weight, row, column, codes);
  const Values of_group = values_of(weight, row, column);
  float values[kWordColumns];
#pragma unroll
  for (int i = 0; i < kWordColumns; ++i) values[i] = of_group.number(codes[i]);
  const int64_t first = int64_t{blockIdx.y} * call.num_eights;
  reinterpret_cast<Bf16x8*>(call.to)[first + index] = pack(values);
}

GgufCall make_call(const MatmulArgs& args) { return gguf_call(skinny_call(args), args.weight); }

// A block has four warps, and so four elements of out.
template <bool kIs4>
void launch_any(CudaStream& stream, const GgufCall& call, const TensorView& out) {
  const auto num_blocks = static_cast<unsigned>((out.num_elements() + 3) / 4);
  const bool is_f32 = out.dtype() == DType::kF32;
  (is_f32 ? any_gguf_product<kIs4, float>
          : any_gguf_product<kIs4, uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(call);
}

}  // namespace

void matmul_skinny_gguf(CudaStream& stream, const MatmulArgs& args) {
  launch(stream, make_call(args), args.out.dtype());
}

void gated_skinny_gguf(CudaStream& stream, const GatedProductArgs& args) {
  GgufCall call = make_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.product.gated = static_cast<int32_t>(args.out.dim(1));
  launch(stream, call, DType::kBF16);
}

void matmul_any_gguf(CudaStream& stream, const MatmulArgs& args) {
  const GgufCall call = make_call(args);
  call.layout.is_4 ? launch_any<true>(stream, call, args.out)
                   : launch_any<false>(stream, call, args.out);
}

void convert_gguf(CudaStream& stream, const ConvertArgs& args) {
  const ConvertCall call = {
      .weight = make_call({.x = {}, .weight = args.weight, .bias = {}, .out = {}}),
      .stride = static_cast<int64_t>(args.stride_bytes),
      .to = reinterpret_cast<uint16_t*>(args.to),
      .num_eights = static_cast<uint32_t>(args.num_rows * args.weight.num_cols / kWordColumns),
      .first_row = static_cast<int32_t>(args.row_begin)};
  const dim3 grid((call.num_eights + 255) / 256, static_cast<unsigned>(args.num_weights));
  (call.weight.layout.is_4 ? convert_blocks<true>
                           : convert_blocks<false>)<<<grid, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
