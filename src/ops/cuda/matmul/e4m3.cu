// out [m, n] = x [m, k] * weight [n, k]^T with weights in e4m3: for at most 16 rows as skinny.cu,
// and the conversion to bf16 for more.
//
// Bound: bytes, n k, the weight once. Tile: as in skinny.cu, but a warp takes 128 columns at once,
// those of a scale. A lane loads 16 bytes, 16 neighbouring columns of one weight row; they become
// bf16 in registers, exactly. The sum over 128 columns is multiplied by the scale in f32 and added
// to those before. Lane 4 g + t has columns 16 t to 16 t + 15 of a group of 64. Thread rule:
// enqueue only.
#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/skinny_parts.cuh"

namespace sluice::cuda {
namespace {

constexpr int kLoadsInFlight = 8;   // of 16 bytes of the weight, per thread
constexpr int kSharedPercent = 28;  // as in skinny.cu
constexpr int kGroup = kScaleGroup;
constexpr uint32_t kExponentOfOne = 127;  // of e4m3_factors

// The rows and columns of a lane.
struct Lane {
  int group_row;    // of x and of each tile
  int pair_row;     // of each tile: the first of the two whose sums the lane has
  int half_column;  // of 64
  int first_row;    // of the block
  int first_column;
  int rows_to_second_half;  // added to the row in the second half of the tiles: `up` with a gate

  template <int kTiles>
  __device__ int64_t row(int tile, int row_of_tile) const {
    const int64_t row = first_row + tile * kTileRows + row_of_tile;
    return tile >= kTiles / 2 ? row + rows_to_second_half : row;
  }
};

// The scales of a call.
struct Scales {
  const float* first;
  int32_t per_row;  // 1: one for all columns
  int64_t num_rows;

  __device__ float of(int64_t row, int32_t group) const { return first[group * num_rows + row]; }
};

// What a kernel gets.
struct E4m3Call {
  SkinnyCall product;
  Scales scales;
};

// The codes and scales that a lane holds at a time.
template <int kTiles, int kWarps>
struct CodeRound {
  static constexpr int kChunks = kLoadsInFlight / (2 * kTiles);
  static constexpr int kColumns = kWarps * kChunks * kGroup;  // of all warps

  Bf16x8 codes[kChunks][kTiles][2];  // 16 codes each
  float scales[kChunks][kTiles][2];

  __device__ static int chunk_column(int begin, int chunk) {
    return begin + chunk * kWarps * kGroup;
  }

  __device__ void load(const SkinnyCall& call, const Scales& all, const Lane& lane, int begin) {
    const auto* weight = static_cast<const uint8_t*>(call.weight);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int column = chunk_column(begin, c);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = column + half * (kGroup / 2) + lane.half_column;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int64_t row = lane.template row<kTiles>(tile, lane.group_row);
          codes[c][tile][half] = {};
          if (row < call.n && k < call.k) {
            codes[c][tile][half] = load_weight(weight + row * call.k + k);
          }
        }
      }
      const int32_t group = all.per_row == 1 ? 0 : column / kGroup;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int64_t row = lane.template row<kTiles>(tile, lane.pair_row + i);
          scales[c][tile][i] = row < call.n && column < call.k ? all.of(row, group) : 0.0f;
        }
      }
    }
  }

  // Adds the products with x. kHigh: x has rows 8 to 15.
  template <bool kHigh>
  __device__ void multiply_by_x(const SkinnyCall& call, const Lane& lane, int begin,
                                float (&sums)[kTiles][4]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Bf16x8 low[2][2] = {};
      Bf16x8 high[2][2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = chunk_column(begin, c) + half * (kGroup / 2) + lane.half_column;
        const uint16_t* x = call.x + static_cast<int64_t>(lane.group_row) * call.k + k;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          if (k < call.k && lane.group_row < call.m) {
            low[half][part] = *reinterpret_cast<const Bf16x8*>(x + 8 * part);
          }
          if (kHigh && k < call.k && lane.group_row + 8 < call.m) {
            high[half][part] = *reinterpret_cast<const Bf16x8*>(x + int64_t{8} * call.k + 8 * part);
          }
        }
      }
      __syncwarp();  // as in skinny.cu
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        float of_group[4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Bf16x8& packed = codes[c][tile][half];
          const uint32_t factors = e4m3_factors(kExponentOfOne);
          multiply(of_group, low[half][0], high[half][0],
                   read_e4m3(uint2{packed.pairs[0], packed.pairs[1]}, factors));
          multiply(of_group, low[half][1], high[half][1],
                   read_e4m3(uint2{packed.pairs[2], packed.pairs[3]}, factors));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[tile][i] = __fmaf_rn(of_group[i], scales[c][tile][i % 2], sums[tile][i]);
        }
      }
    }
  }
};

template <int kTiles, int kWarps, bool kHigh, typename Out, bool kGated>
__global__ void __launch_bounds__(kWarps* kWarpThreads) skinny_e4m3(E4m3Call all) {
  const SkinnyCall& call = all.product;
  const Scales& scales = all.scales;
  constexpr int kRows = (kGated ? kTiles / 2 : kTiles) * kTileRows;  // of the weight, side by side
  __shared__ float shared_sums[kWarps * kTiles * kWarpThreads * 4];
  const int thread = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
  const Lane lane = {.group_row = thread / 4,
                     .pair_row = thread % 4 * 2,
                     .half_column = thread % 4 * 16,
                     .first_row = static_cast<int>(blockIdx.x) * kRows,
                     .first_column = warp * kGroup,
                     .rows_to_second_half = kGated ? call.gated - kRows : 0};
  float sums[kTiles][4] = {};
  CodeRound<kTiles, kWarps> round;
  // Before x exists, as in skinny.cu.
  round.load(call, scales, lane, lane.first_column);
  let_next_kernel_start();
  wait_for_earlier_work();
  for (int begin = lane.first_column; begin < call.k;) {
    round.template multiply_by_x<kHigh>(call, lane, begin, sums);
    begin += CodeRound<kTiles, kWarps>::kColumns;
    if (begin < call.k) round.load(call, scales, lane, begin);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    auto* mine = reinterpret_cast<float4*>(shared_sums) + (warp * kTiles + tile) * kWarpThreads;
    mine[thread] = {sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]};
  }
  __syncthreads();
  if constexpr (kGated) {
    write_gated<kTiles, kWarps>(call, shared_sums);
  } else {
    write_sums<kTiles, kWarps, Out>(call, shared_sums);
  }
}

template <int kTiles, int kWarps, typename Out, bool kGated>
void launch_skinny(CudaStream& stream, const SkinnyCall& call, const Scales& scales) {
  constexpr int kColumns = (kGated ? kTiles / 2 : kTiles) * kTileRows;
  const int32_t n = kGated ? call.gated : call.n;
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>((n + kColumns - 1) / kColumns)),
                             .block = dim3(kWarps * kWarpThreads),
                             .shared_percent = kSharedPercent};
  launch_early(stream,
               call.m > 8 ? skinny_e4m3<kTiles, kWarps, true, Out, kGated>
                          : skinny_e4m3<kTiles, kWarps, false, Out, kGated>,
               shape, E4m3Call{call, scales});
}

template <int kTiles, int kWarps>
void launch(CudaStream& stream, const SkinnyCall& call, const Scales& scales, DType out) {
  if constexpr (kTiles % 2 == 0) {
    if (call.gated > 0) return launch_skinny<kTiles, kWarps, uint16_t, true>(stream, call, scales);
  }
  out == DType::kF32 ? launch_skinny<kTiles, kWarps, float, false>(stream, call, scales)
                     : launch_skinny<kTiles, kWarps, uint16_t, false>(stream, call, scales);
}

// By the weight's shape alone, so that the bits of a row do not depend on the number of rows. Fewer
// shapes than with bf16, whose weights are twice as long to read.
void launch(CudaStream& stream, const SkinnyCall& call, const Scales& scales, DType out) {
  const int num_blocks = stream.cuda_device().properties().multiProcessorCount;
  const bool is_gated = call.gated > 0;
  if (call.n <= 8 * num_blocks && !is_gated) return launch<1, 16>(stream, call, scales, out);
  if (call.n <= 32 * num_blocks) return launch<2, 16>(stream, call, scales, out);
  if (call.n <= 256 * num_blocks) return launch<4, 8>(stream, call, scales, out);
  return launch<4, 4>(stream, call, scales, out);
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
    const float scale = scales.of(n, scales.per_row == 1 ? 0 : i / kGroup);
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
};

// A thread converts 16 columns of a row.
__global__ void __launch_bounds__(256) convert_codes(ConvertCall call) {
  const int64_t piece = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  wait_for_earlier_work();  // `to` was read by an earlier product
  if (piece >= call.num_pieces) return;
  const int64_t row = piece / call.pieces_per_row;
  const auto column = static_cast<int32_t>(piece % call.pieces_per_row) * 16;
  const int32_t group = call.scales.per_row == 1 ? 0 : column / kGroup;
  const float scale = call.scales.of(row, group);
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
          .per_row = static_cast<int32_t>(scales_per_row(weight.format, weight.num_cols)),
          .num_rows = weight.num_rows};
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
  launch(stream, make_call(args), scales_of(args.weight), args.out.dtype());
}

void gated_skinny_e4m3(CudaStream& stream, const GatedProductArgs& args) {
  SkinnyCall call = make_call({.x = args.x, .weight = args.weight, .bias = {}, .out = args.out});
  call.gated = static_cast<int32_t>(args.out.dim(1));
  launch(stream, call, scales_of(args.weight), DType::kBF16);
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
  ConvertCall call = {
      .codes = reinterpret_cast<const uint8_t*>(weight.data) + row_begin * weight.num_cols,
      .scales = scales_of(weight),
      .to = reinterpret_cast<uint16_t*>(to),
      .num_pieces = num_rows * weight.num_cols / 16,
      .pieces_per_row = static_cast<int32_t>(weight.num_cols / 16)};
  call.scales.first += row_begin;
  const auto num_blocks = static_cast<unsigned>((call.num_pieces + 255) / 256);
  convert_codes<<<num_blocks, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
