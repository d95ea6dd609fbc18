// The kernel of products with few rows whose weights are codes: codes go to shared memory some
// groups of columns ahead, and become bf16 in registers.
//
// To take codes apart takes half of the time, or more, that reading them takes. Loads that wait in
// registers, as those of skinny.cu, would alternate with that work; copies to shared memory go on
// beside it. A block walks its parts of the weight, and a warp its groups of 128 columns of each.
// The weight is the left factor of the tensor cores' products, which has 16 rows, and x the right
// one, which has 8: the rows that x lacks cost nothing then. What a format has of its own is its
// Codec (<format>_codec.cuh). Included by these. Thread rule: device code, and launches on the
// thread that enqueues.
#pragma once

#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/matmul/skinny_products.cuh"
#include "ops/cuda/matmul/skinny_stage.cuh"

namespace sluice::cuda {

// The sums of a lane: rows g and g + 8 of each tile, for two rows of x, and for two of those from 8
// on.
template <int kTiles, bool kHigh>
struct Sums {
  float low[kTiles][4] = {};
  float high[kTiles][4] = {};

  // Eight columns of rows `upper` = g and `lower` = g + 8 of a tile; pair i of both are the columns
  // of pair i of x.
  template <typename X>
  __device__ void add(int tile, const X& x, int i, const Bf16x8& upper, const Bf16x8& lower) {
#pragma unroll
    for (int p = 0; p < 4; p += 2) {
      const uint32_t w[4] = {upper.pairs[p], lower.pairs[p], upper.pairs[p + 1],
                             lower.pairs[p + 1]};
      add_pairs(tile, x, i, p, w);
    }
  }

  // Pairs p and p + 1 of these columns: w as multiply_tile has it.
  template <typename X>
  __device__ void add_pairs(int tile, const X& x, int i, int p, const uint32_t (&w)[4]) {
    const auto& of_tile = x.of(tile);
    multiply_tile(low[tile], w, of_tile.low[i].pairs[p], of_tile.low[i].pairs[p + 1]);
    if (kHigh) multiply_tile(high[tile], w, of_tile.high[i].pairs[p], of_tile.high[i].pairs[p + 1]);
  }

  // Subtracts sums of x, the same for all rows of a tile, or of all tiles, times the zero points of
  // the lane's rows.
  template <int kTilesOfX>
  __device__ void subtract(int tile, const Sums<kTilesOfX, kHigh>& of_x, float upper, float lower) {
    const int of_tile = tile % kTilesOfX;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float zero = i < 2 ? upper : lower;
      low[tile][i] = __fmaf_rn(-zero, of_x.low[of_tile][i], low[tile][i]);
      if (kHigh) high[tile][i] = __fmaf_rn(-zero, of_x.high[of_tile][i], high[tile][i]);
    }
  }

  // Adds the sums of a group of columns, times the scales of the lane's rows.
  __device__ void add_scaled(int tile, const Sums& of_group, float upper, float lower) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = i < 2 ? upper : lower;
      low[tile][i] = __fmaf_rn(of_group.low[tile][i], scale, low[tile][i]);
      if (kHigh) high[tile][i] = __fmaf_rn(of_group.high[tile][i], scale, high[tile][i]);
    }
  }
};

// The sums of a block's warps. Of up to 8 rows of x it has those that are there: what shared memory
// is left is that of the next kernel, which begins early.
template <bool kHigh, int kTiles = kTilesOf<kRingEights>>
class SharedSums {
 public:
  __host__ __device__ static constexpr size_t bytes(int m) {
    return sizeof(float4) * kRingWarps * kTiles * kBanks * 8 * num_quarters(m);
  }

  __device__ SharedSums(void* memory, int m)
      : sums_(static_cast<float4*>(memory)), num_quarters_(num_quarters(m)) {}

  __device__ void put(int warp, const Lane& lane, const Sums<kTiles, kHigh>& sums) {
    if (lane.quarter() >= num_quarters_) return;
    const int in_bank = lane.row() * num_quarters_ + lane.quarter();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float4* mine = sums_ + bank(warp, tile) + in_bank;
      const auto& low = sums.low[tile];
      *mine = {low[0], low[1], low[2], low[3]};
      const auto& high = sums.high[tile];
      if (kHigh) mine[8 * num_quarters_] = {high[0], high[1], high[2], high[3]};
    }
  }

  // The sum of a row of x and a row of the part.
  __device__ float total(int x_row, int row) const {
    const int in_tile = row % kRingTileRows;
    const int lane = in_tile % 8 * num_quarters_ + x_row % 8 / 2;
    const int value = in_tile / 8 * 2 + x_row % 2;
    const int high = kHigh ? x_row / 8 * 8 * num_quarters_ : 0;
    const float4* first = sums_ + bank(0, row / kRingTileRows) + high + lane;
    const float* mine = reinterpret_cast<const float*>(first) + value;
    const int stride = bank(1, 0) * 4;
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < kRingWarps; ++warp) sum += mine[warp * stride];
    return sum;
  }

 private:
  static constexpr int kBanks = kHigh ? 2 : 1;

  // A quarter has two rows of x.
  __host__ __device__ static constexpr int num_quarters(int m) { return kHigh ? 4 : (m + 1) / 2; }
  __device__ int bank(int warp, int tile) const {
    return (warp * kTiles + tile) * kBanks * 8 * num_quarters_;
  }

  float4* sums_;
  int num_quarters_;
};

template <typename Codec, int kDepth, int kEights = kRingEights>
using Ring = Stage<Codec, kEights>[kRingWarps][kDepth];

// Threads that launch bounds name: more than there are, for at most 80 registers a thread where
// weights are copied while attention computes. A block then fits beside one of decode's windows (4
// warps of 120 registers) and one that combines them (4 of 40): a quarter of a multiprocessor has
// 16,384. With more, a block of `o` would wait for the end of attention where all three meet.
template <typename Codec, int kDepth, bool kHigh, bool kGated, int kEights>
inline constexpr int kBoundThreads = kDepth >= kRingDepth && !kHigh && !kGated &&
                                             kEights <= kRingEights && Codec::kFitsBesideAttention
                                         ? 704
                                         : kRingThreads;

// Codes are copied kDepth groups ahead, over the borders of parts too. Codec::add_group adds the
// products of a group, times its scales, to sums.
template <typename Codec, int kDepth, bool kHigh, typename Out, bool kGated, int kEights>
__global__ void __launch_bounds__(kBoundThreads<Codec, kDepth, kHigh, kGated, kEights>)
    skinny_codes(const __grid_constant__ typename Codec::Call all) {
  auto* dynamic_shared = reinterpret_cast<std::byte*>(dynamic_shared_memory());
  auto& ring = *reinterpret_cast<Ring<Codec, kDepth, kEights>*>(dynamic_shared);
  constexpr int kTiles = kTilesOf<kEights>;
  using BlockSums = SharedSums<kHigh, kTiles>;
  const SkinnyCall& call = all.product;
  constexpr int kRows = kPartRows<kGated, kEights>;
  const int num_parts = ((kGated ? call.gated : call.n) + kRows - 1) / kRows;
  const int num_groups = (call.k + kGroup - 1) / kGroup;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Lane lane = {static_cast<int>(threadIdx.x) % kWarpThreads};
  Place next = {.part = static_cast<int>(blockIdx.x), .group = warp};
  if (warp >= num_groups) next.part = num_parts;  // a warp without columns
  const auto copy_next = [&](int slot) {
    if (next.part < num_parts) {
      copy_stage<Codec, kGated>(all, next.part, next.group, lane, ring[warp][slot]);
      next.advance(num_groups);
    }
    end_of_copies();
  };
  // Before x exists, as in skinny.cu.
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) copy_next(slot);
  let_next_kernel_start();
  wait_for_earlier_work();
  ColumnsOf<Codec, kHigh> x(call, lane);
  if constexpr (Codec::kHasOrders) x.template move_to<kGated>(all, blockIdx.x);
  x.load(warp);
  int slot = 0;
  int round = 0;
  for (int part = blockIdx.x; part < num_parts; part += gridDim.x, ++round) {
    Sums<kTiles, kHigh> sums;
    for (int group = warp; group < num_groups; group += kRingWarps) {
      wait_for_copies_but<kDepth - 1>();
      __syncwarp();  // scales were copied by other lanes
      x.prepare();
      const int next_group = group + kRingWarps < num_groups ? group + kRingWarps : warp;
      if constexpr (Codec::kHasOrders || kHigh) {
        // Registers hold one group of x: copy_next takes about as long as the load.
        Codec::add_group(ring[warp][slot], x, lane, sums);
        if constexpr (Codec::kHasOrders) {
          if (group + kRingWarps >= num_groups) x.template move_to<kGated>(all, part + gridDim.x);
        }
        x.load(next_group);
      } else {
        // From L2 a load takes as long as the products of a group.
        auto ahead = x;
        ahead.load(next_group);
        Codec::add_group(ring[warp][slot], x, lane, sums);
        x = ahead;
      }
      __syncwarp();
      copy_next(slot);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    // Of two parts in turn, so that one barrier a part is enough.
    BlockSums shared_sums(dynamic_shared + sizeof(ring) + round % 2 * BlockSums::bytes(call.m),
                          call.m);
    shared_sums.put(warp, lane, sums);
    __syncthreads();
    // Another warp each time, since the others go on.
    const int thread = static_cast<int>(threadIdx.x + round * kWarpThreads) % kRingThreads;
    const auto total = [&](int x_row, int row) { return shared_sums.total(x_row, row); };
    if constexpr (kGated) {
      write_gated<kRows, kRingThreads>(call, part, thread, total);
    } else {
      write_sums<kRows, kRingThreads, Out>(call, part, thread, total);
    }
  }
}

// Bytes that a block needs for up to m rows.
template <typename Codec, int kDepth, bool kHigh, int kEights = kRingEights>
constexpr size_t ring_shared_bytes(int m) {
  return sizeof(Ring<Codec, kDepth, kEights>) + 2 * SharedSums<kHigh, kTilesOf<kEights>>::bytes(m);
}

// The same with what ColumnsOf has: what a GPU must have.
template <typename Codec, int kDepth, bool kHigh, int kEights = kRingEights>
constexpr size_t all_shared_bytes(int m) {
  return ring_shared_bytes<Codec, kDepth, kHigh, kEights>(m) +
         ColumnsOf<Codec, kHigh>::kSharedBytes;
}

// Rows of x that a kernel has at most: with the smaller ring 4 where the sums of 8 do not fit.
template <typename Codec, int kDepth, bool kHigh>
constexpr int ring_rows() {
  if (kHigh) return 16;
  const bool is_small = kDepth == kSmallRingDepth;
  return is_small && all_shared_bytes<Codec, kDepth, kHigh>(8) > kLeastSharedBytes ? 4 : 8;
}

template <typename Codec, int kDepth, bool kHigh, typename Out, bool kGated, int kEights>
void launch_parts(CudaStream& stream, const typename Codec::Call& call) {
  constexpr int kRows = kPartRows<kGated, kEights>;
  constexpr auto kShared = ring_shared_bytes<Codec, kDepth, kHigh, kEights>;
  const auto kernel = skinny_codes<Codec, kDepth, kHigh, Out, kGated, kEights>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kShared(ring_rows<Codec, kDepth, kHigh>()))),
             "cudaFuncSetAttribute");
  const int32_t n = kGated ? call.product.gated : call.product.n;
  const int most = stream.cuda_device().properties().multiProcessorCount;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(std::min((n + kRows - 1) / kRows, most))),
      .block = dim3(kRingThreads),
      .shared_bytes = kShared(call.product.m)};
  launch_early(stream, kernel, shape, call);
}

// Eights of rows of a part, for a weight of n rows: those that leave the fewest to the busiest
// multiprocessor. 5,120 rows are 160 parts of four eights, so that 28 of 132 blocks take twice as
// many as the others, but 128 parts of five. No bit depends on it: a row is summed the same way.
template <typename Codec, int kDepth>
int32_t part_eights(int32_t n, int32_t num_multiprocessors, size_t most_shared_bytes) {
  const int32_t num_eights = (n + 7) / 8;
  int32_t best = kRingEights;
  if (num_eights <= kRingEights * num_multiprocessors) return best;
  const auto most_of = [&](int32_t eights) {
    const int32_t num_parts = (num_eights + eights - 1) / eights;
    return (num_parts + num_multiprocessors - 1) / num_multiprocessors * eights;
  };
  const auto consider = [&](int32_t eights, size_t shared_bytes) {
    if (shared_bytes <= most_shared_bytes && most_of(eights) < most_of(best)) {
      best = eights;
    }
  };
  // Codes of 4 bits are not in parts of two eights: x of a group costs a part as much as its codes,
  // and an 8B model decodes 6 % slower.
  if constexpr (Codec::kPieces > 1) consider(2, 0);
  consider(5, all_shared_bytes<Codec, kDepth, false, 5>(8));
  return best;
}

// More than 8 rows of x, gates, and columns in orders, whose tiles may be of different ones, have
// parts of four eights.
template <typename Codec, int kDepth, bool kHigh, typename Out, bool kGated>
void launch_ring(CudaStream& stream, const typename Codec::Call& call) {
  if constexpr (kDepth == kRingDepth && !kHigh && !kGated && !Codec::kHasOrders) {
    const auto& gpu = stream.cuda_device().properties();
    const int32_t eights = part_eights<Codec, kDepth>(call.product.n, gpu.multiProcessorCount,
                                                      gpu.sharedMemPerBlockOptin);
    if (eights == 5) return launch_parts<Codec, kDepth, kHigh, Out, kGated, 5>(stream, call);
    if constexpr (Codec::kPieces > 1) {
      // As many bytes on their way as with four.
      if (eights == 2) return launch_parts<Codec, 2 * kDepth, kHigh, Out, kGated, 2>(stream, call);
    }
  }
  launch_parts<Codec, kDepth, kHigh, Out, kGated, kRingEights>(stream, call);
}

template <typename Codec, int kDepth, bool kHigh>
void launch_ring(CudaStream& stream, const typename Codec::Call& call, DType out) {
  if (call.product.gated > 0) {
    launch_ring<Codec, kDepth, kHigh, uint16_t, true>(stream, call);
  } else if (out == DType::kF32) {
    launch_ring<Codec, kDepth, kHigh, float, false>(stream, call);
  } else {
    launch_ring<Codec, kDepth, kHigh, uint16_t, false>(stream, call);
  }
}

// The rows of a call from `first` on, at most `count`.
inline SkinnyCall rows_of(SkinnyCall call, int first, int count, DType out) {
  const int64_t num_columns = call.gated > 0 ? call.gated : call.n;
  call.x += int64_t{first} * call.k;
  call.out = static_cast<std::byte*>(call.out) + first * num_columns * dtype_bytes(out);
  call.m = std::min(call.m - first, count);
  return call;
}

// Reads the weight once for every kRows rows of x.
template <typename Codec, int kDepth, int kRows>
void launch_few_rows(CudaStream& stream, const typename Codec::Call& call, DType out) {
  for (int first = 0; first < call.product.m; first += kRows) {
    auto part = call;
    part.product = rows_of(call.product, first, kRows, out);
    launch_ring<Codec, kDepth, false>(stream, part, out);
  }
}

// On a GPU with less shared memory than Hopper's a kernel has 4 or 8 rows of x, and 8 where columns
// have orders.
template <typename Codec>
void launch_skinny_codes(CudaStream& stream, const typename Codec::Call& call, DType out) {
  constexpr bool kTakesAll = !Codec::kHasOrders;
  constexpr int kSmallRows = ring_rows<Codec, kSmallRingDepth, false>();
  static_assert(all_shared_bytes<Codec, kSmallRingDepth, false>(kSmallRows) <= kLeastSharedBytes);
  constexpr size_t kMostBytes = all_shared_bytes<Codec, kRingDepth, kTakesAll>(kTakesAll ? 16 : 8);
  if (kMostBytes > stream.cuda_device().properties().sharedMemPerBlockOptin) {
    return launch_few_rows<Codec, kSmallRingDepth, kSmallRows>(stream, call, out);
  }
  if constexpr (kTakesAll) {
    if (call.product.m > 8) return launch_ring<Codec, kRingDepth, true>(stream, call, out);
  }
  launch_few_rows<Codec, kRingDepth, 8>(stream, call, out);
}

}  // namespace sluice::cuda
