// out [m, n] = x [m, k] * weight [n, k]^T with weights in integers of 4 bits: for at most 16 rows,
// and the conversion to bf16 for more.
//
// Bound: bytes, n k / 2, the weight once. Tile: that of skinny_ring.cuh. A lane has 16 bytes of
// each 128 columns: four words of eight columns, one in each 32. Where groups are multiples of 128
// columns, a sum over these has one scale, else each 32 columns have theirs. Thread rule: enqueue
// only.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/matmul/convert.h"
#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/matmul/uint4.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

static_assert(kGroup == kUint4Columns);
constexpr int kWordColumns = 8;
constexpr int kWords = 4;  // of a lane in a group
constexpr int kWordGroup = kGroup / kWords;

// What a kernel gets.
struct Uint4Call {
  SkinnyCall product;
  Uint4Layout layout;

  __device__ int64_t value_index(int64_t row, int32_t group) const {
    return int64_t{group} * layout.group_stride + row;
  }
  // Eight columns of a row.
  __device__ uint32_t word(int64_t row, int column) const {
    const auto* words = reinterpret_cast<const uint32_t*>(
        static_cast<const std::byte*>(product.weight) + row * layout.row_bytes);
    const int in_group = column % kGroup;
    return words[column / kGroup * (kGroup / kWordColumns) +
                 in_group % kWordGroup / kWordColumns * kWords + in_group / kWordGroup];
  }
  __device__ const float* scales() const {
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(product.weight) +
                                          layout.scales_at);
  }
  __device__ const uint8_t* zeros() const {
    return static_cast<const uint8_t*>(product.weight) + layout.zeros_at;
  }
};

// Integers that were read as bits of bf16 are 2^133 times too small, and x was multiplied by 2^80.
constexpr float kProductScale = 0x1p53f;

// The eight integers of a word as bf16, times 1 in the even pairs and 16 in the odd ones. Integers
// below 256 are bf16 2^133 times smaller: subnormal numbers and those of the smallest exponent.
__device__ inline Bf16x8 read_word(uint32_t word) {
  return {
      {word & 0x000f000fu, word & 0x00f000f0u, word >> 8 & 0x000f000fu, word >> 8 & 0x00f000f0u}};
}

// kWhole: all columns of a group of 128 have one scale.
template <bool kWhole>
struct Uint4Codec {
  using Call = Uint4Call;
  static constexpr int kPieces = 1;
  static constexpr int kScales = kWhole ? 1 : kWords;  // of a group of 128
  static constexpr bool kHasZeros = true;

  __device__ static int first_column(const Lane& lane) { return lane.quarter() * kWordColumns; }
  __device__ static constexpr int column_offset(int word) { return word * kWordGroup; }

  __device__ static int row_bytes(const Call& all) {
    return static_cast<int>(all.layout.row_bytes);
  }

  __device__ static const float* scale_at(const Call& all, int row, int group, int s) {
    return all.scales() + all.value_index(row, group * kScales + s);
  }

  __device__ static const uint8_t* zero_at(const Call& all, int row, int group, int s) {
    return all.zeros() + all.value_index(row, group * kScales + s);
  }

  // Times 2^80 / 1 and 2^80 / 16, as read_word has it. Exact below 2^48.
  __device__ static Bf16x8 prepare(const Bf16x8& x) {
    Bf16x8 large;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t factors = i % 2 == 0 ? 0x67806780u : 0x65806580u;
      const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x.pairs[i]),
                                             *reinterpret_cast<const __nv_bfloat162*>(&factors));
      large.pairs[i] = *reinterpret_cast<const uint32_t*>(&product);
    }
    return large;
  }

  // Integers times x, less zero points times x: the sums of x are products with ones, so that
  // nothing is subtracted in each column. Tiles in turn, so that no product waits for the one
  // before.
  template <bool kHigh>
  __device__ static void add_group(const Stage<Uint4Codec>& stage,
                                   const Columns<Uint4Codec, kHigh>& x, const Lane& lane,
                                   Sums<kRingTiles, kHigh>& sums) {
    Sums<kRingTiles, kHigh> of_group;
    Sums<1, kHigh> of_x;
    const Bf16x8 ones = read_word(0x11111111u);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      of_x.add(0, x, w, ones, ones);
#pragma unroll
      for (int tile = 0; tile < kRingTiles; ++tile) {
        const auto& codes = stage.codes[tile];
        of_group.add(tile, x, w, read_word(codes[0][0][lane.id].pairs[w]),
                     read_word(codes[1][0][lane.id].pairs[w]));
      }
      if (kWhole && w + 1 < kWords) continue;
      const int s = kWhole ? 0 : w;
#pragma unroll
      for (int tile = 0; tile < kRingTiles; ++tile) {
        const int row = tile * kRingTileRows + lane.row();
        of_group.subtract(tile, of_x, static_cast<float>(stage.zero(s, row)),
                          static_cast<float>(stage.zero(s, row + 8)));
        sums.add_scaled(tile, of_group, stage.scale(s, row) * kProductScale,
                        stage.scale(s, row + 8) * kProductScale);
      }
      of_group = {};
      of_x = {};
    }
  }
};

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
