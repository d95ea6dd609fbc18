// out [m, n] = x [m, k] * weight [n, k]^T with weights in e4m3: for at most 16 rows, and the
// conversion to bf16 for more.
//
// Bound: bytes, n k, the weight once. Tile: as in skinny.cu, but a warp takes 128 columns at once,
// those of a scale: their sum is multiplied by the scale in f32 and added to those before. Codes go
// to shared memory some groups ahead and become bf16 in registers, exactly: to take them apart is
// half of the time that reading them takes, so both must go on at once. Share with 1 row: 54 to 82
// % of the rate of a copy; each product loses some 3 us at its start and end, while nothing is read
// (docs/kernels/cuda_ops.md). Thread rule: enqueue only.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/e4m3.cuh"
#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/skinny_parts.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

constexpr int kGroup = kScaleGroup;
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

// The lane g * 4 + t has row g of each tile and columns 16 t to 16 t + 15 of each half of a group,
// and the sums of rows 2 t and 2 t + 1 of each tile.
struct Lane {
  int id;

  __device__ int row() const { return id / 4; }
  __device__ int first_sum() const { return id % 4 * 2; }
  __device__ int half_column() const { return id % 4 * 16; }
};

// Columns 0, 2 and 1, 3 of four neighbours, as two pairs, times 2^80: the order in which codes are
// cheapest to take apart. The sum over columns does not depend on their order, as long as x has the
// same. Exact below 2^48.
__device__ inline Bf16x8 order_columns(const Bf16x8& x) {
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

// The products of order_columns and code_pair are 2^40 times too small.
constexpr float kProductScale = 0x1p40f;

// Two codes as bf16 2^120 times smaller, subnormal ones included: only bits move.
__device__ inline uint32_t code_pair(uint32_t signs, uint32_t magnitudes) {
  return (signs & 0x80008000u) | (magnitudes & 0x07f007f0u);
}

// Eight neighbouring codes in the order of order_columns.
__device__ inline Bf16x8 read_codes(uint32_t first, uint32_t second) {
  return {{code_pair(first << 8, first << 4), code_pair(first, first >> 4),
           code_pair(second << 8, second << 4), code_pair(second, second >> 4)}};
}

// Copies 16 bytes to shared memory past registers and L1; zeros without `is_there`.
__device__ inline void copy_async(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

// The codes of 128 columns, 16 for each lane of a warp in each half. A lane reads what it copied
// itself, so that no barrier is needed.
template <int kTiles>
struct Stage {
  Bf16x8 codes[kTiles][2][kWarpThreads];
};

// The rows of the weight in tile `tile` of part `part`, which has the rows of one block.
template <int kTiles, bool kGated>
__device__ inline int64_t first_row(const SkinnyCall& call, int part, int tile) {
  constexpr int kRows = (kGated ? kTiles / 2 : kTiles) * kTileRows;
  const int64_t row = int64_t{part} * kRows + tile * kTileRows;
  return kGated && tile >= kTiles / 2 ? row + call.gated - kRows : row;
}

// Where a warp is in the parts of its block: at a group of 128 columns of one of them.
template <int kWarps>
struct Place {
  int part;
  int group;

  __device__ void advance(int num_groups) {
    group += kWarps;
    if (group < num_groups) return;
    group = static_cast<int>(threadIdx.x) / kWarpThreads;
    part += static_cast<int>(gridDim.x);
  }
};

template <int kTiles, bool kGated>
__device__ inline void copy_stage(const SkinnyCall& call, int part, int group, const Lane& lane,
                                  Stage<kTiles>& to) {
  const auto* weight = static_cast<const uint8_t*>(call.weight);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t row = first_row<kTiles, kGated>(call, part, tile) + lane.row();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = group * kGroup + half * (kGroup / 2) + lane.half_column();
      const bool is_there = row < call.n && k < call.k;
      copy_async(&to.codes[tile][half][lane.id], is_there ? weight + row * call.k + k : weight,
                 is_there);
    }
  }
}

// The columns of x that a lane multiplies in a group.
template <bool kHigh>
struct Columns {
  Bf16x8 low[2][2] = {};
  Bf16x8 high[2][2] = {};  // x has rows 8 to 15

  __device__ void load(const SkinnyCall& call, const Lane& lane, int group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = group * kGroup + half * (kGroup / 2) + lane.half_column();
      const uint16_t* x = call.x + static_cast<int64_t>(lane.row()) * call.k + k;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        if (k < call.k && lane.row() < call.m) {
          low[half][part] = *reinterpret_cast<const Bf16x8*>(x + 8 * part);
        }
        if (kHigh && k < call.k && lane.row() + 8 < call.m) {
          high[half][part] = *reinterpret_cast<const Bf16x8*>(x + int64_t{8} * call.k + 8 * part);
        }
      }
    }
  }

  __device__ void order() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i / 2][i % 2] = order_columns(low[i / 2][i % 2]);
      if (kHigh) high[i / 2][i % 2] = order_columns(high[i / 2][i % 2]);
    }
  }
};

// The scales of a lane's sums in a group. Blocks of 128 rows have whole tiles: one scale for each
// half of them, which with a gate are gates and `up`.
template <int kTiles, bool kGated, bool kBlocks>
struct LaneScales {
  float of_tiles[kTiles][2];

  __device__ void load(const E4m3Call& all, const Lane& lane, int part, int group) {
    const SkinnyCall& call = all.product;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int64_t row = first_row<kTiles, kGated>(call, part, tile);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kBlocks) {
          const bool is_first = i == 0 && (tile == 0 || (kGated && tile == kTiles / 2));
          if (is_first) {
            of_tiles[tile][0] = *all.scales.of(row, group) * kProductScale;
          } else {
            of_tiles[tile][i] = of_tiles[kGated && tile >= kTiles / 2 ? kTiles / 2 : 0][0];
          }
        } else {
          const int64_t mine = min(row + lane.first_sum() + i, int64_t{call.n} - 1);
          of_tiles[tile][i] = *all.scales.of(mine, group) * kProductScale;
        }
      }
    }
  }
};

// Adds the products of a group of columns: their sum times the scale.
template <int kTiles, bool kHigh>
__device__ inline void add_group(const Stage<kTiles>& stage, const Columns<kHigh>& x,
                                 const Lane& lane, const float (&scales)[kTiles][2],
                                 float (&sums)[kTiles][4]) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float of_group[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16x8 packed = stage.codes[tile][half][lane.id];
      multiply(of_group, x.low[half][0], x.high[half][0],
               read_codes(packed.pairs[0], packed.pairs[1]));
      multiply(of_group, x.low[half][1], x.high[half][1],
               read_codes(packed.pairs[2], packed.pairs[3]));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sums[tile][i] = __fmaf_rn(of_group[i], scales[tile][i % 2], sums[tile][i]);
    }
  }
}

// The sums of two parts, so that one barrier a part is enough.
template <int kTiles, int kWarps, int kDepth>
struct SkinnyShared {
  Stage<kTiles> ring[kWarps][kDepth];
  float4 sums[2][kWarps][kTiles][kWarpThreads];
};

// A block walks its parts of the weight, and a warp its groups of columns of each; codes are copied
// kDepth groups ahead, over the borders of parts too.
template <int kTiles, int kWarps, int kDepth, bool kHigh, typename Out, bool kGated, bool kBlocks>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    skinny_e4m3(const __grid_constant__ E4m3Call all) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  auto& shared = *reinterpret_cast<SkinnyShared<kTiles, kWarps, kDepth>*>(dynamic_shared);
  const SkinnyCall& call = all.product;
  constexpr int kRows = (kGated ? kTiles / 2 : kTiles) * kTileRows;
  const int num_parts = ((kGated ? call.gated : call.n) + kRows - 1) / kRows;
  const int num_groups = (call.k + kGroup - 1) / kGroup;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Lane lane = {static_cast<int>(threadIdx.x) % kWarpThreads};
  Place<kWarps> next = {.part = static_cast<int>(blockIdx.x), .group = warp};
  if (warp >= num_groups) next.part = num_parts;  // a warp without columns
  const auto copy_next = [&](int slot) {
    if (next.part < num_parts) {
      copy_stage<kTiles, kGated>(call, next.part, next.group, lane, shared.ring[warp][slot]);
      next.advance(num_groups);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Before x exists, as in skinny.cu.
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) copy_next(slot);
  let_next_kernel_start();
  wait_for_earlier_work();
  int slot = 0;
  int turn = 0;
  for (int part = blockIdx.x; part < num_parts; part += gridDim.x, turn ^= 1) {
    float sums[kTiles][4] = {};
    for (int group = warp; group < num_groups; group += kWarps) {
      Columns<kHigh> x;
      x.load(call, lane, group);
      LaneScales<kTiles, kGated, kBlocks> scales;
      scales.load(all, lane, part, group);
      asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
      x.order();
      add_group(shared.ring[warp][slot], x, lane, scales.of_tiles, sums);
      copy_next(slot);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      shared.sums[turn][warp][i][lane.id] = {sums[i][0], sums[i][1], sums[i][2], sums[i][3]};
    }
    __syncthreads();
    const auto* all_sums = reinterpret_cast<const float*>(shared.sums[turn]);
    // Another warp each time, since the others go on.
    const int thread =
        static_cast<int>(threadIdx.x + (part / gridDim.x) * kWarpThreads) % (kWarps * kWarpThreads);
    if constexpr (kGated) {
      write_gated<kTiles, kWarps>(call, part, thread, all_sums);
    } else {
      write_sums<kTiles, kWarps, Out>(call, part, thread, all_sums);
    }
  }
}

template <int kTiles, int kWarps, int kDepth, bool kHigh, typename Out, bool kGated, bool kBlocks>
void launch_skinny(CudaStream& stream, const E4m3Call& call, int blocks_per_multiprocessor) {
  constexpr int kRows = (kGated ? kTiles / 2 : kTiles) * kTileRows;
  using Shared = SkinnyShared<kTiles, kWarps, kDepth>;
  const auto kernel = skinny_e4m3<kTiles, kWarps, kDepth, kHigh, Out, kGated, kBlocks>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
      "cudaFuncSetAttribute");
  const int32_t n = kGated ? call.product.gated : call.product.n;
  const int most =
      blocks_per_multiprocessor * stream.cuda_device().properties().multiProcessorCount;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(std::min((n + kRows - 1) / kRows, most))),
      .block = dim3(kWarps * kWarpThreads),
      .shared_bytes = sizeof(Shared)};
  launch_early(stream, kernel, shape, call);
}

template <int kTiles, int kWarps, int kDepth, bool kHigh, bool kBlocks>
void launch(CudaStream& stream, const E4m3Call& call, DType out, int blocks) {
  if (call.product.gated > 0) {
    return launch_skinny<kTiles, kWarps, kDepth, kHigh, uint16_t, true, kBlocks>(stream, call,
                                                                                 blocks);
  }
  out == DType::kF32
      ? launch_skinny<kTiles, kWarps, kDepth, kHigh, float, false, kBlocks>(stream, call, blocks)
      : launch_skinny<kTiles, kWarps, kDepth, kHigh, uint16_t, false, kBlocks>(stream, call,
                                                                               blocks);
}

template <int kTiles, int kWarps, int kDepth>
void launch(CudaStream& stream, const E4m3Call& call, DType out, int blocks) {
  const auto with = [&]<bool kHigh>(std::bool_constant<kHigh>) {
    // With a gate, both halves of a block's tiles lie in one block of scales.
    const bool is_blocks = call.scales.layout.row_shift > 0 && call.product.gated % kGroup == 0;
    is_blocks ? launch<kTiles, kWarps, kDepth, kHigh, true>(stream, call, out, blocks)
              : launch<kTiles, kWarps, kDepth, kHigh, false>(stream, call, out, blocks);
  };
  call.product.m > 8 ? with(std::bool_constant<true>()) : with(std::bool_constant<false>());
}

// By the weight's shape alone, so that the bits of a row do not depend on the number of rows. Each
// is the fastest of 17 for the matrices of a model of 8 G weights (docs/kernels/cuda_ops.md): the
// blocks that are there at a time have about as many parts as the weight, and at least 16 warps.
void launch(CudaStream& stream, const E4m3Call& call, DType out) {
  const int num_multiprocessors = stream.cuda_device().properties().multiProcessorCount;
  if (call.product.n <= 32 * num_multiprocessors) return launch<4, 16, 2>(stream, call, out, 1);
  if (call.product.n <= 48 * num_multiprocessors) return launch<2, 8, 2>(stream, call, out, 3);
  launch<4, 8, 2>(stream, call, out, 2);
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
