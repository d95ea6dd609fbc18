// out [m, n] = x [m, k] * weight [n, k]^T with weights in e4m3: for at most 16 rows, and the
// conversion to bf16 for more.
//
// Bound: bytes, n k, the weight once. Tile: that of skinny_ring.cuh; the sum over 128 columns,
// those of a scale, is multiplied by the scale in f32 and added to those before. Share with 1 row:
// 54 to 82 % of the rate of a copy; each product loses some 3 us at its start and end, while
// nothing is read (docs/kernels/cuda_ops.md). Thread rule: enqueue only.
#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

static_assert(kGroup == kScaleGroup);
constexpr uint32_t kExponentOfOne = 127;  // of e4m3_factors

// Where the scale of a number is (E4m3ScaleLayout).
struct Scales {
  const float* first;
  E4m3ScaleLayout layout;

  __device__ const float* of(int64_t row, int32_t group) const {
    return first + (row >> layout.row_shift) * layout.row_stride + group * layout.group_stride;
  }
};

// What a kernel gets.
struct E4m3Call {
  SkinnyCall product;
  Scales scales;
};

// The products of E4m3Codec::prepare and code_pair are 2^40 times too small.
constexpr float kProductScale = 0x1p40f;

// Two codes as bf16 2^120 times smaller, subnormal ones included: only bits move.
__device__ inline uint32_t code_pair(uint32_t signs, uint32_t magnitudes) {
  return (signs & 0x80008000u) | (magnitudes & 0x07f007f0u);
}

// Eight neighbouring codes in the order of E4m3Codec::prepare.
__device__ inline Bf16x8 read_codes(uint32_t first, uint32_t second) {
  return {{code_pair(first << 8, first << 4), code_pair(first, first >> 4),
           code_pair(second << 8, second << 4), code_pair(second, second >> 4)}};
}

// A lane has columns 16 t to 16 t + 15 of each half of a group. kBlocks: scales of 128 rows.
template <bool kBlocks>
struct E4m3Codec {
  using Call = E4m3Call;
  static constexpr int kPieces = 2;  // halves of a group

  __device__ static int column(int i, const Lane& lane) {
    return i / 2 * (kGroup / 2) + lane.quarter() * 16 + i % 2 * 8;
  }

  __device__ static const void* locate(const Call& all, int64_t row, int group, int half,
                                       const Lane& lane) {
    const SkinnyCall& call = all.product;
    const int k = group * kGroup + column(2 * half, lane);
    if (row >= call.n || k >= call.k) return nullptr;
    return static_cast<const uint8_t*>(call.weight) + row * call.k + k;
  }

  // Columns 0, 2 and 1, 3 of four neighbours, as two pairs, times 2^80: the order in which codes
  // are cheapest to take apart. The sum over columns does not depend on their order, as long as x
  // has the same. Exact below 2^48.
  __device__ static Bf16x8 prepare(const Bf16x8& x) {
    constexpr uint32_t kLarge = 0x67806780u;
    Bf16x8 ordered;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair =
          __byte_perm(x.pairs[i / 2 * 2], x.pairs[i / 2 * 2 + 1], i % 2 == 0 ? 0x5410 : 0x7632);
      const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                             *reinterpret_cast<const __nv_bfloat162*>(&kLarge));
      ordered.pairs[i] = *reinterpret_cast<const uint32_t*>(&product);
    }
    return ordered;
  }

  // The scales of a lane's sums. Blocks of 128 rows have whole tiles: one scale for each half of
  // them, which with a gate are gates and `up`.
  template <int kTiles, bool kGated>
  struct Scales {
    float of_tiles[kTiles][2];

    __device__ void load(const Call& all, const Lane& lane, int part, int group) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int64_t row = first_row<kTiles, kGated>(all.product, part, tile);
        const int of_half = kGated && tile >= kTiles / 2 ? kTiles / 2 : 0;
        if (kBlocks && tile == of_half) {
          of_tiles[tile][0] = *all.scales.of(row, group) * kProductScale;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (kBlocks) {
            of_tiles[tile][i] = of_tiles[of_half][0];
          } else {
            const int64_t mine = min(row + lane.first_sum() + i, int64_t{all.product.n} - 1);
            of_tiles[tile][i] = *all.scales.of(mine, group) * kProductScale;
          }
        }
      }
    }

    template <bool kHigh>
    __device__ void add_group(const Stage<kTiles, kPieces>& stage,
                              const Columns<E4m3Codec, kHigh>& x, const Lane& lane,
                              float (&sums)[kTiles][4]) const {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float of_group[4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Bf16x8 packed = stage.codes[tile][half][lane.id];
          multiply(of_group, x.low[2 * half], x.high[2 * half],
                   read_codes(packed.pairs[0], packed.pairs[1]));
          multiply(of_group, x.low[2 * half + 1], x.high[2 * half + 1],
                   read_codes(packed.pairs[2], packed.pairs[3]));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[tile][i] = __fmaf_rn(of_group[i], of_tiles[tile][i % 2], sums[tile][i]);
        }
      }
    }
  };
};

// Each shape is the fastest of 17 for the matrices of a model of 8 G weights
// (docs/kernels/cuda_ops.md): the blocks that are there at a time have about as many parts as the
// weight, and at least 16 warps.
template <typename Codec>
void launch(CudaStream& stream, const E4m3Call& call, DType out) {
  const int num_multiprocessors = stream.cuda_device().properties().multiProcessorCount;
  if (call.product.n <= 32 * num_multiprocessors) {
    return launch_skinny_codes<Codec, 4, 16, 2>(stream, call, out, 1);
  }
  if (call.product.n <= 48 * num_multiprocessors) {
    return launch_skinny_codes<Codec, 2, 8, 2>(stream, call, out, 3);
  }
  launch_skinny_codes<Codec, 4, 8, 2>(stream, call, out, 2);
}

void launch(CudaStream& stream, const E4m3Call& call, DType out) {
  // With a gate, both halves of a block's tiles lie in one block of scales.
  const bool is_blocks = call.scales.layout.row_shift > 0 && call.product.gated % kGroup == 0;
  is_blocks ? launch<E4m3Codec<true>>(stream, call, out)
            : launch<E4m3Codec<false>>(stream, call, out);
}

// One warp per element of out: lanes take every 32nd column, then add up.
template <typename Out>
__global__ void __launch_bounds__(128) any_e4m3_product(SkinnyCall call, Scales scales) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / kWarpThreads;
  const int64_t row = index / call.n;
  const int64_t n = index % call.n;
  if (row >= call.m) return;
  const uint16_t* x = call.x + row * call.k;
  const uint8_t* weight = static_cast<const uint8_t*>(call.weight) + n * call.k;
  float sum = 0.0f;
  for (int i = threadIdx.x % kWarpThreads; i < call.k; i += kWarpThreads) {
    const float scale = *scales.of(n, i / kGroup);
    sum += bf16_to_float(x[i]) * read_e4m3(weight[i], e4m3_factors(kExponentOfOne)) * scale;
  }
  sum = group_sum<kWarpThreads>(sum);
  if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
  if (threadIdx.x % kWarpThreads == 0) store(static_cast<Out*>(call.out) + index, sum);
}

struct ConvertCall {
  const uint8_t* codes;
  Scales scales;
  uint16_t* to;
  int64_t num_pieces;  // of 16 columns
  int32_t pieces_per_row;
  int64_t first_row;  // of the weight
};

// A thread converts 16 columns of a row.
__global__ void __launch_bounds__(256) convert_codes(ConvertCall call) {
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (piece >= call.num_pieces) return;
  const int64_t row = piece / call.pieces_per_row;
  const auto column = static_cast<int32_t>(piece % call.pieces_per_row) * 16;
  const float scale = *call.scales.of(call.first_row + row, column / kGroup);
  const uint4 codes = *reinterpret_cast<const uint4*>(call.codes + piece * 16);
  const uint2 halves[2] = {{codes.x, codes.y}, {codes.z, codes.w}};
  auto* to = reinterpret_cast<Bf16x8*>(call.to + piece * 16);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float values[8];
    unpack(read_e4m3(halves[half], e4m3_factors(kExponentOfOne)), values);
#pragma unroll
    for (float& value : values) value *= scale;
    to[half] = pack(values);
  }
}

Scales scales_of(const PackedWeight& weight) {
  return {.first = e4m3_scales(weight),
          .layout = e4m3_scale_layout(weight.format, weight.num_rows, weight.num_cols)};
}

SkinnyCall make_call(const MatmulArgs& args) {
  return {.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
          .weight = args.weight.data,
          .bias = reinterpret_cast<const uint16_t*>(args.bias.bytes()),
          .out = args.out.bytes(),
          .m = static_cast<int32_t>(args.x.dim(0)),
          .n = static_cast<int32_t>(args.weight.num_rows),
          .k = static_cast<int32_t>(args.weight.num_cols),
          .gated = 0};
}

}  // namespace

void matmul_skinny_e4m3(CudaStream& stream, const MatmulArgs& args) {
  launch(stream, {make_call(args), scales_of(args.weight)}, args.out.dtype());
}

void gated_skinny_e4m3(CudaStream& stream, const GatedProductArgs& args) {
  SkinnyCall call = make_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.gated = static_cast<int32_t>(args.out.dim(1));
  launch(stream, {call, scales_of(args.weight)}, DType::kBF16);
}

void matmul_any_e4m3(CudaStream& stream, const MatmulArgs& args) {
  const SkinnyCall call = make_call(args);
  const auto num_blocks = static_cast<unsigned>((args.out.num_elements() + 3) / 4);
  const bool is_f32 = args.out.dtype() == DType::kF32;
  (is_f32 ? any_e4m3_product<float>
          : any_e4m3_product<uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(
      call, scales_of(args.weight));
}

void convert_e4m3(CudaStream& stream, const PackedWeight& weight, int64_t row_begin,
                  int64_t num_rows, std::byte* to) {
  const ConvertCall call = {
      .codes = reinterpret_cast<const uint8_t*>(weight.data) + row_begin * weight.num_cols,
      .scales = scales_of(weight),
      .to = reinterpret_cast<uint16_t*>(to),
      .num_pieces = num_rows * weight.num_cols / 16,
      .pieces_per_row = static_cast<int32_t>(weight.num_cols / 16),
      .first_row = row_begin};
  const auto num_blocks = static_cast<unsigned>((call.num_pieces + 255) / 256);
  convert_codes<<<num_blocks, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
