// out [m, n] = x [m, k] * weight [n, k]^T for at most 16 rows.
//
// Bound: bytes, 2 n k, the weight once. Tile: a block has 8 to 32 weight rows and all of k; its
// warps take chunks of 64 columns in turn, and their sums are added in ascending order of warps at
// the end. Share with 1 row, of the rate of a device-to-device copy: 90 to 100 % for large weights,
// some 55 % for small ones, whose time is mostly latency (docs/kernels/cuda_ops.md). Thread rule:
// enqueue only.
//
// The arithmetic is m16n8k16 on tensor cores, with x for its 16 rows and 8 weight rows for its
// columns. A lane loads 16 bytes, 8 neighbouring columns of one weight row, and uses them unchanged
// as operands: the sum over k does not depend on the names of columns, as long as x is permuted
// alike, so nothing passes through shared memory. Lane 4 g + t has columns 8 t to 8 t + 7 of a
// group of 32; pairs 0 and 1 of them are a fragment's two k-pairs in a first product, pairs 2 and 3
// in a second.
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/matmul/skinny_parts.cuh"

namespace sluice::cuda {
namespace {

constexpr int kTileRows = 8;  // weight rows of one product

// Streamed once: it must not push x out of L1. Not a load of constants, which the compiler would
// move after wait_for_earlier_work.
__device__ inline Bf16x8 load_weight(const void* source) {
  Bf16x8 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
               : "l"(source)
               : "memory");
  return v;
}

__device__ inline void multiply(float (&sums)[4], const uint32_t (&x)[4], uint32_t w0,
                                uint32_t w1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(w0), "r"(w1));
}

// Eight columns of the sum, for rows g and g + 8 of x.
__device__ inline void multiply(float (&sums)[4], const Bf16x8& low, const Bf16x8& high,
                                const Bf16x8& w) {
  multiply(sums, {low.pairs[0], high.pairs[0], low.pairs[1], high.pairs[1]}, w.pairs[0],
           w.pairs[1]);
  multiply(sums, {low.pairs[2], high.pairs[2], low.pairs[3], high.pairs[3]}, w.pairs[2],
           w.pairs[3]);
}

// Adds up the warps' sums of an element. `sums` is [warp][tile][lane][4], as the products left
// them: value i of lane 4 g + t is row g + 8 (i / 2) of x, weight row 2 t + i % 2 of the tile.
template <int kTiles, int kWarps>
__device__ inline float sum_of_warps(const float* sums, int row, int column) {
  const int lane = row % 8 * 4 + column % kTileRows / 2;
  const int value = row / 8 * 2 + column % 2;
  const float* mine = sums + (column / kTileRows * kWarpThreads + lane) * 4 + value;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += mine[warp * kTiles * kWarpThreads * 4];
  return sum;
}

constexpr int kChunkColumns = 64;  // 128 bytes of a row
constexpr int kLoadsInFlight = 8;  // of 16 bytes of the weight, per thread
// 64 KiB of shared memory, so that the L1 cache has a line for each load in flight, also after a
// kernel of decode attention, which takes most of it as shared memory.
constexpr int kSharedPercent = 28;
// 132 KiB for products that load all of their weight at once: a multiprocessor changes the division
// of its cache only when it is idle, so kernels that start early should request about as much as
// attention before them. Products that continue to load would lose more by the smaller cache.
constexpr int kOneRoundSharedPercent = 57;

// The rows and columns of a lane.
struct Lane {
  int group_row;    // of x and of each tile
  int half_column;  // of 32
  int first_row;    // of the weight
  int first_column;
  int rows_to_second_half;  // added to the row in the second half of the tiles: `up` with a gate
};

// The pieces of the weight that a lane holds at a time.
template <int kTiles, int kWarps>
struct WeightRound {
  static constexpr int kChunks = kLoadsInFlight / (2 * kTiles);
  static constexpr int kColumns = kWarps * kChunks * kChunkColumns;  // of all warps

  Bf16x8 pieces[kChunks][kTiles][2];

  __device__ static int column(const Lane& lane, int begin, int chunk, int half) {
    return begin + chunk * kWarps * kChunkColumns + half * 32 + lane.half_column;
  }

  __device__ void load(const SkinnyCall& call, const Lane& lane, int begin) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = column(lane, begin, c, half);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          int64_t row = lane.first_row + tile * kTileRows;
          if (tile >= kTiles / 2) row += lane.rows_to_second_half;
          pieces[c][tile][half] = {};
          if (row < call.n && k < call.k) {
            pieces[c][tile][half] =
                load_weight(static_cast<const uint16_t*>(call.weight) + row * call.k + k);
          }
        }
      }
    }
  }

  // Adds the products with x. kHigh: x has rows 8 to 15.
  template <bool kHigh>
  __device__ void multiply_by_x(const SkinnyCall& call, const Lane& lane, int begin,
                                float (&sums)[kTiles][4]) const {
    // Twice as many rows of x are held for half as many columns.
    constexpr int kChunksAtOnce = kHigh ? (kChunks + 1) / 2 : kChunks;
#pragma unroll
    for (int first = 0; first < kChunks; first += kChunksAtOnce) {
      Bf16x8 low[kChunksAtOnce][2] = {};
      Bf16x8 high[kChunksAtOnce][2] = {};
#pragma unroll
      for (int c = 0; c < kChunksAtOnce; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int k = column(lane, begin, first + c, half);
          const uint16_t* x = call.x + static_cast<int64_t>(lane.group_row) * call.k + k;
          if (k < call.k && lane.group_row < call.m) {
            low[c][half] = *reinterpret_cast<const Bf16x8*>(x);
          }
          if (kHigh && k < call.k && lane.group_row + 8 < call.m) {
            high[c][half] = *reinterpret_cast<const Bf16x8*>(x + int64_t{8} * call.k);
          }
        }
      }
      __syncwarp();  // otherwise the compiler would sink each load to its use and serialise them
#pragma unroll
      for (int c = 0; c < kChunksAtOnce; ++c) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply(sums[tile], low[c][0], high[c][0], pieces[first + c][tile][0]);
          multiply(sums[tile], low[c][1], high[c][1], pieces[first + c][tile][1]);
        }
      }
    }
  }
};

// The least number of blocks per multiprocessor, which limits registers: the blocks of a shape are
// then one wave, also with 16 rows.
template <int kTiles, int kWarps>
constexpr int kLeastBlocks = kWarps == 12 || (kTiles == 3 && kWarps == 16) ? 2 : 1;

template <int kTiles, int kWarps, bool kHigh, typename Out, bool kGated>
__global__ void __launch_bounds__(kWarps* kWarpThreads, (kLeastBlocks<kTiles, kWarps>))
    skinny(SkinnyCall call) {
  constexpr int kRows = (kGated ? kTiles / 2 : kTiles) * kTileRows;  // of the weight, side by side
  __shared__ float shared_sums[kWarps * kTiles * kWarpThreads * 4];
  const int thread = threadIdx.x % kWarpThreads;
  const int warp = threadIdx.x / kWarpThreads;
  const Lane lane = {.group_row = thread / 4,
                     .half_column = thread % 4 * 8,
                     .first_row = static_cast<int>(blockIdx.x) * kRows + thread / 4,
                     .first_column = warp * kChunkColumns,
                     .rows_to_second_half = kGated ? call.gated - kRows : 0};
  float sums[kTiles][4] = {};
  WeightRound<kTiles, kWarps> round;
  // A weight is no kernel's output (early_launch.cuh), so its first pieces are on their way before
  // x exists.
  round.load(call, lane, lane.first_column);
  // After the loads, so that the next kernel's loads of its weight start while this one waits for
  // x, but not before this one's.
  let_next_kernel_start();
  wait_for_earlier_work();
  for (int begin = lane.first_column; begin < call.k;) {
    round.template multiply_by_x<kHigh>(call, lane, begin, sums);
    begin += WeightRound<kTiles, kWarps>::kColumns;
    if (begin < call.k) round.load(call, lane, begin);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    auto* mine = reinterpret_cast<float4*>(shared_sums) + (warp * kTiles + tile) * kWarpThreads;
    mine[thread] = {sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]};
  }
  __syncthreads();
  const auto total = [&](int row, int column) {
    return sum_of_warps<kTiles, kWarps>(shared_sums, row, column);
  };
  const auto part = static_cast<int>(blockIdx.x);
  if constexpr (kGated) {
    write_gated<kRows, kWarps * kWarpThreads>(call, part, static_cast<int>(threadIdx.x), total);
  } else {
    write_sums<kRows, kWarps * kWarpThreads, Out>(call, part, static_cast<int>(threadIdx.x), total);
  }
}

template <int kTiles, int kWarps, typename Out, bool kGated>
void launch_skinny(CudaStream& stream, const SkinnyCall& call) {
  constexpr int kColumns = (kGated ? kTiles / 2 : kTiles) * kTileRows;
  const int32_t n = kGated ? call.gated : call.n;
  const bool one_round = call.k <= WeightRound<kTiles, kWarps>::kColumns;
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>((n + kColumns - 1) / kColumns)),
                             .block = dim3(kWarps * kWarpThreads),
                             .shared_percent = one_round ? kOneRoundSharedPercent : kSharedPercent};
  launch_early(stream,
               call.m > 8 ? skinny<kTiles, kWarps, true, Out, kGated>
                          : skinny<kTiles, kWarps, false, Out, kGated>,
               shape, call);
}

template <int kTiles, int kWarps>
void launch(CudaStream& stream, const SkinnyCall& call, DType out) {
  if constexpr (kTiles % 2 == 0) {
    if (call.gated > 0) return launch_skinny<kTiles, kWarps, uint16_t, true>(stream, call);
  }
  out == DType::kF32 ? launch_skinny<kTiles, kWarps, float, false>(stream, call)
                     : launch_skinny<kTiles, kWarps, uint16_t, false>(stream, call);
}

template <int kTiles>
void launch(CudaStream& stream, const SkinnyCall& call, DType out, int warps) {
  switch (warps) {
    case 4:
      return launch<kTiles, 4>(stream, call, out);
    case 8:
      return launch<kTiles, 8>(stream, call, out);
    case 12:
      if constexpr (kTiles == 2) return launch<kTiles, 12>(stream, call, out);
      break;
    case 16:
      return launch<kTiles, 16>(stream, call, out);
    default:
      break;
  }
  SLUICE_CHECK(false, "matmul: {} tiles, {} warps", kTiles, warps);
}

// The overloads of launch turn tiles, warps and types into template parameters, one at a time.
void launch(CudaStream& stream, const SkinnyCall& call, DType out, const SkinnyShape& shape) {
  switch (shape.tiles) {
    case 1:
      return launch<1>(stream, call, out, shape.warps);
    case 2:
      return launch<2>(stream, call, out, shape.warps);
    case 3:
      return launch<3>(stream, call, out, shape.warps);
    case 4:
      return launch<4>(stream, call, out, shape.warps);
    default:
      SLUICE_CHECK(false, "matmul: {} tiles", shape.tiles);
  }
}

// One warp per element of out: lanes take every 32nd column, then add up.
template <typename Out>
__global__ void __launch_bounds__(128) any_product(SkinnyCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 4 + threadIdx.x / kWarpThreads;
  const int64_t row = index / call.n;
  const int64_t n = index % call.n;
  if (row >= call.m) return;
  const uint16_t* x = call.x + row * call.k;
  const uint16_t* weight = static_cast<const uint16_t*>(call.weight) + n * call.k;
  float sum = 0.0f;
  for (int i = threadIdx.x % kWarpThreads; i < call.k; i += kWarpThreads) {
    sum += bf16_to_float(x[i]) * bf16_to_float(weight[i]);
  }
  sum = group_sum<kWarpThreads>(sum);
  if (call.bias != nullptr) sum += bf16_to_float(call.bias[n]);
  if (threadIdx.x % kWarpThreads == 0) store(static_cast<Out*>(call.out) + index, sum);
}

struct BiasCall {
  const uint16_t* bias;
  float* out;
  int64_t num_elements;
  int32_t n;
};

__global__ void __launch_bounds__(256) add_bias_elements(BiasCall call) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (index < call.num_elements) call.out[index] += bf16_to_float(call.bias[index % call.n]);
}

}  // namespace

// One wave of blocks with as many loads in flight as there is room for, as far as n allows; fewer
// warps when there are many blocks anyway. The limits are the fastest of 12 shapes in whole layers
// of a small and a large model (docs/kernels/cuda_ops.md).
SkinnyShape skinny_shape(int64_t n, int64_t k, int num_multiprocessors) {
  if (n <= 8 * num_multiprocessors) return {.tiles = k <= 2048 ? 2 : 1, .warps = 16};
  if (n <= 16 * num_multiprocessors) return {.tiles = 2, .warps = 16};
  if (n <= 32 * num_multiprocessors) return {.tiles = 2, .warps = k <= 2048 ? 8 : 12};
  if (n <= 48 * num_multiprocessors) return {.tiles = 3, .warps = 16};
  if (n <= 256 * num_multiprocessors) return {.tiles = 4, .warps = 8};
  return {.tiles = 4, .warps = 4};
}

// The same, for kernels of 70 registers a thread; n counts gates and `up`.
SkinnyShape gated_shape(int64_t n, int64_t k, int num_multiprocessors) {
  if (n <= 16 * num_multiprocessors) return {.tiles = 2, .warps = 16};
  if (n <= 48 * num_multiprocessors) return {.tiles = 2, .warps = 8};
  return skinny_shape(n, k, num_multiprocessors);
}

void matmul_skinny(CudaStream& stream, const MatmulArgs& args, const SkinnyShape& shape) {
  launch(stream, skinny_call(args), args.out.dtype(), shape);
}

void gated_skinny(CudaStream& stream, const GatedProductArgs& args, const SkinnyShape& shape) {
  const SkinnyCall call = skinny_call(args);
  launch(stream, call, DType::kBF16, shape);
}

void matmul_any(CudaStream& stream, const MatmulArgs& args) {
  const SkinnyCall call = skinny_call(args);
  const auto num_blocks = static_cast<unsigned>((args.out.num_elements() + 3) / 4);
  const bool is_f32 = args.out.dtype() == DType::kF32;
  (is_f32 ? any_product<float>
          : any_product<uint16_t>)<<<num_blocks, 128, 0, stream.handle()>>>(call);
}

void add_bias(CudaStream& stream, const TensorView& bias, const TensorView& out) {
  const BiasCall call = {.bias = reinterpret_cast<const uint16_t*>(bias.bytes()),
                         .out = out.data<float>(),
                         .num_elements = out.num_elements(),
                         .n = static_cast<int32_t>(out.dim(1))};
  const auto num_blocks = static_cast<unsigned>((call.num_elements + 255) / 256);
  add_bias_elements<<<num_blocks, 256, 0, stream.handle()>>>(call);
}

}  // namespace sluice::cuda
