// out [m, n] = x [m, k] * weight [n, k]^T with weights in e4m3: for at most 16 rows, and the
// conversion to bf16 for more.
//
// Bound: bytes, n k, the weight once. Tile: that of skinny_ring.cuh; the sum over 128 columns,
// those of a scale, is multiplied by the scale in f32 and added to those before. Each product loses
// some 3 us at its start and end, while nothing is read (docs/kernels/cuda_ops.md). Thread rule:
// enqueue only.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/convert.h"
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

// A lane has columns 16 t to 16 t + 15 of each half of a group.
struct E4m3Codec {
  using Call = E4m3Call;
  static constexpr int kPieces = 2;  // halves of a group
  static constexpr int kScales = 1;
  static constexpr bool kHasZeros = false;

  __device__ static int first_column(const Lane& lane) { return lane.quarter() * 16; }
  __device__ static constexpr int column_offset(int i) { return i / 2 * (kGroup / 2) + i % 2 * 8; }

  __device__ static int row_bytes(const Call& all) { return all.product.k; }

  __device__ static const float* scale_at(const Call& all, int row, int group, int /*s*/) {
    return all.scales.of(row, group);
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

  // Tiles in turn, so that no product waits for the one before.
  template <bool kHigh>
  __device__ static void add_group(const Stage<E4m3Codec>& stage,
                                   const Columns<E4m3Codec, kHigh>& x, const Lane& lane,
                                   Sums<kRingTiles, kHigh>& sums) {
    Sums<kRingTiles, kHigh> of_group;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int tile = 0; tile < kRingTiles; ++tile) {
        const auto& upper = stage.codes[tile][0][i / 2][lane.id].pairs;
        const auto& lower = stage.codes[tile][1][i / 2][lane.id].pairs;
        of_group.add(tile, x, i, read_codes(upper[i % 2 * 2], upper[i % 2 * 2 + 1]),
                     read_codes(lower[i % 2 * 2], lower[i % 2 * 2 + 1]));
      }
    }
#pragma unroll
    for (int tile = 0; tile < kRingTiles; ++tile) {
      const int row = tile * kRingTileRows + lane.row();
      sums.add_scaled(tile, of_group, stage.scale(0, row) * kProductScale,
                      stage.scale(0, row + 8) * kProductScale);
    }
  }
};

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
  const uint8_t* codes;  // of the first row
  Scales scales;
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
  unpack(read_e4m3(codes, e4m3_factors(kExponentOfOne)), values);
#pragma unroll
  for (float& value : values) value *= scale;
  reinterpret_cast<Bf16x8*>(call.to)[blockIdx.y * call.num_pieces + piece] = pack(values);
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
  launch_skinny_codes<E4m3Codec>(stream, {make_call(args), scales_of(args.weight)},
                                 args.out.dtype());
}

void gated_skinny_e4m3(CudaStream& stream, const GatedProductArgs& args) {
  SkinnyCall call = make_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.gated = static_cast<int32_t>(args.out.dim(1));
  launch_skinny_codes<E4m3Codec>(stream, {call, scales_of(args.weight)}, DType::kBF16);
}

void matmul_any_e4m3(CudaStream& stream, const MatmulArgs& args) {
  const SkinnyCall call = make_call(args);
  const auto num_blocks = static_cast<unsigned>((args.out.num_elements() + 3) / 4);
  const bool is_f32 = args.out.dtype() == DType::kF32;
  (is_f32 ? any_e4m3_product<float>
          : any_e4m3_product<uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(
      call, scales_of(args.weight));
}

void convert_e4m3(CudaStream& stream, const ConvertArgs& args) {
  const PackedWeight& weight = args.weight;
  const ConvertCall call = {
      .codes = reinterpret_cast<const uint8_t*>(weight.data) + args.row_begin * weight.num_cols,
      .scales = scales_of(weight),
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
