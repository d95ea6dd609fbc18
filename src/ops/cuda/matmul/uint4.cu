// out [m, n] = x [m, k] * weight [n, k]^T with weights in integers of 4 bits: for at most 16 rows,
// and the conversion to bf16 for more.
//
// Bound: bytes, n k / 2, the weight once. Tile: that of skinny_ring.cuh. A lane has 16 bytes of
// each 128 columns: four words of eight columns, one in each 32. The bits of q in those of 128 as
// bf16 are 128 + q; less 128 + z, exactly, they are q - z. Where groups are multiples of 128
// columns, a sum over these has one scale, else each 32 columns have theirs. Thread rule: enqueue
// only.
#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/matmul/uint4.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

static_assert(kGroup == kUint4Columns);
constexpr int kWordColumns = 8;
constexpr int kWords = 4;  // of a lane in a group
constexpr int kWordGroup = kGroup / kWords;
constexpr uint32_t kBiasPair = 0x43004300u;  // 128 as both bf16 of a pair

// What a kernel gets.
struct Uint4Call {
  SkinnyCall product;
  int64_t row_bytes;
  const float* scales;   // [groups][n]
  const uint8_t* zeros;  // likewise
  int32_t group_cols;    // of a scale

  __device__ int64_t at(int64_t row, int column) const {
    return int64_t{column / group_cols} * product.n + row;
  }
};

// 128 + z as both bf16 of a pair.
__device__ inline uint32_t zero_pair(uint8_t zero) {
  return kBiasPair | zero | static_cast<uint32_t>(zero) << 16;
}

// The eight integers of a word less their zero point.
__device__ inline Bf16x8 read_word(uint32_t word, uint32_t zeros) {
  Bf16x8 numbers;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = (word >> 4 * i & 0x000f000fu) | kBiasPair;
    const __nv_bfloat162 difference = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                              *reinterpret_cast<const __nv_bfloat162*>(&zeros));
    numbers.pairs[i] = *reinterpret_cast<const uint32_t*>(&difference);
  }
  return numbers;
}

// kWhole: all columns of a group of 128 have one scale.
template <bool kWhole>
struct Uint4Codec {
  using Call = Uint4Call;
  static constexpr int kPieces = 1;
  static constexpr int kScales = kWhole ? 1 : kWords;  // of a group of 128

  __device__ static int column(int word, const Lane& lane) {
    return word * kWordGroup + lane.quarter() * kWordColumns;
  }

  __device__ static const void* locate(const Call& all, int64_t row, int group, int /*piece*/,
                                       const Lane& lane) {
    if (row >= all.product.n) return nullptr;
    return static_cast<const uint8_t*>(all.product.weight) + row * all.row_bytes +
           group * (kGroup / 2) + lane.quarter() * 16;
  }

  __device__ static Bf16x8 prepare(const Bf16x8& x) { return x; }

  // The scales of a lane's sums, and the zero points of its row of the weight.
  template <int kTiles, bool kGated>
  struct Scales {
    float of_tiles[kTiles][kScales][2];
    uint32_t zeros[kTiles][kScales];

    __device__ void load(const Call& all, const Lane& lane, int part, int group) {
      const int64_t last_row = int64_t{all.product.n} - 1;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int64_t row = first_row<kTiles, kGated>(all.product, part, tile);
#pragma unroll
        for (int s = 0; s < kScales; ++s) {
          // Columns of padding have those of the last one: x is 0 there.
          const int column = min(group * kGroup + s * kWordGroup, all.product.k - 1);
          zeros[tile][s] = zero_pair(all.zeros[all.at(min(row + lane.row(), last_row), column)]);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int64_t mine = min(row + lane.first_sum() + i, last_row);
            of_tiles[tile][s][i] = all.scales[all.at(mine, column)];
          }
        }
      }
    }

    template <bool kHigh>
    __device__ void add_group(const Stage<kTiles, kPieces>& stage,
                              const Columns<Uint4Codec, kHigh>& x, const Lane& lane,
                              float (&sums)[kTiles][4]) const {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const Bf16x8 words = stage.codes[tile][0][lane.id];
        float of_group[4] = {};
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const int s = kWhole ? 0 : w;
          multiply(of_group, x.low[w], x.high[w], read_word(words.pairs[w], zeros[tile][s]));
          if (kWhole && w + 1 < kWords) continue;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[tile][i] = __fmaf_rn(of_group[i], of_tiles[tile][s][i % 2], sums[tile][i]);
            of_group[i] = 0.0f;
          }
        }
      }
    }
  };
};

// By the weight's shape alone; those of e4m3.cu, whose rows have twice the bytes.
template <typename Codec>
void launch(CudaStream& stream, const Uint4Call& call, DType out) {
  const int num_multiprocessors = stream.cuda_device().properties().multiProcessorCount;
  if (call.product.n <= 32 * num_multiprocessors) {
    return launch_skinny_codes<Codec, 4, 16, 2>(stream, call, out, 1);
  }
  if (call.product.n <= 48 * num_multiprocessors) {
    return launch_skinny_codes<Codec, 2, 8, 4>(stream, call, out, 3);
  }
  launch_skinny_codes<Codec, 4, 8, 4>(stream, call, out, 2);
}

void launch(CudaStream& stream, const Uint4Call& call, DType out) {
  const bool is_whole = call.group_cols % kGroup == 0 || call.group_cols >= call.product.k;
  is_whole ? launch<Uint4Codec<true>>(stream, call, out)
           : launch<Uint4Codec<false>>(stream, call, out);
}

// The integer of a column, less its zero point, times its scale.
__device__ inline float value_of(const Uint4Call& call, int64_t row, int column) {
  const int in_group = column % kGroup;
  const int word = in_group / kWordGroup;
  const int quarter = in_group % kWordGroup / kWordColumns;
  const int in_word = in_group % kWordColumns;
  const auto* words = reinterpret_cast<const uint32_t*>(
      static_cast<const uint8_t*>(call.product.weight) + row * call.row_bytes);
  const uint32_t bits = words[column / kGroup * (kGroup / kWordColumns) + quarter * kWords + word];
  const int q = static_cast<int>(bits >> (in_word % 2 * 16 + in_word / 2 * 4) & 15u);
  const int64_t at = call.at(row, column);
  return static_cast<float>(q - call.zeros[at]) * call.scales[at];
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
  Uint4Call weight;
  uint16_t* to;
  int64_t num_words;
  int64_t first_row;  // of the weight
};

// A thread converts the eight columns of a word.
__global__ void __launch_bounds__(256) convert_words(const __grid_constant__ ConvertCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (index >= call.num_words) return;
  const int32_t words_per_row = call.weight.product.k / kWordColumns;
  const int64_t row = call.first_row + index / words_per_row;
  const auto column = static_cast<int32_t>(index % words_per_row) * kWordColumns;
  const int in_group = column % kGroup;
  const auto* words = reinterpret_cast<const uint32_t*>(
      static_cast<const uint8_t*>(call.weight.product.weight) + row * call.weight.row_bytes);
  const uint32_t bits =
      words[column / kGroup * (kGroup / kWordColumns) +
            in_group % kWordGroup / kWordColumns * kWords + in_group / kWordGroup];
  const int64_t at = call.weight.at(row, column);
  float values[kWordColumns];
  unpack(read_word(bits, zero_pair(call.weight.zeros[at])), values);
#pragma unroll
  for (float& value : values) value *= call.weight.scales[at];
  reinterpret_cast<Bf16x8*>(call.to)[index] = pack(values);
}

Uint4Call make_call(const MatmulArgs& args) {
  const PackedWeight& weight = args.weight;
  const Uint4Layout layout = uint4_layout(weight.format, weight.num_rows, weight.num_cols);
  const int64_t group_cols = weight.format.group_cols;
  return {.product = {.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
                      .weight = weight.data,
                      .bias = reinterpret_cast<const uint16_t*>(args.bias.bytes()),
                      .out = args.out.bytes(),
                      .m = args.x.present() ? static_cast<int32_t>(args.x.dim(0)) : 0,
                      .n = static_cast<int32_t>(weight.num_rows),
                      .k = static_cast<int32_t>(weight.num_cols),
                      .gated = 0},
          .row_bytes = layout.row_bytes,
          .scales = reinterpret_cast<const float*>(weight.data + layout.scales_at),
          .zeros = reinterpret_cast<const uint8_t*>(weight.data + layout.zeros_at),
          .group_cols = static_cast<int32_t>(group_cols == 0 ? weight.num_cols : group_cols)};
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

void convert_uint4(CudaStream& stream, const PackedWeight& weight, int64_t row_begin,
                   int64_t num_rows, std::byte* to) {
  const ConvertCall call = {.weight = make_call({.x = {}, .weight = weight, .bias = {}, .out = {}}),
                            .to = reinterpret_cast<uint16_t*>(to),
                            .num_words = num_rows * weight.num_cols / kWordColumns,
                            .first_row = row_begin};
  const auto num_blocks = static_cast<unsigned>((call.num_words + 255) / 256);
  convert_words<<<num_blocks, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
