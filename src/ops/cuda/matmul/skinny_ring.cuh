// The kernel of products with few rows whose weights are codes: codes go to shared memory some
// groups of columns ahead, and become bf16 in registers.
//
// To take codes apart takes half of the time, or more, that reading them takes. Loads that wait in
// registers, as those of skinny.cu, would alternate with that work; copies to shared memory go on
// beside it. A block walks its parts of the weight, and a warp its groups of 128 columns of each.
// What a format has of its own is its Codec (e4m3.cu, uint4.cu). Included by these. Thread rule:
// device code, and launches on the thread that enqueues.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cuda/common_launch.cuh"
#include "ops/cuda/matmul/skinny_parts.cuh"

namespace sluice::cuda {

inline constexpr int kGroup = 128;  // columns that a warp takes at once

// The lane g * 4 + t has row g of each tile, and the sums of rows 2 t and 2 t + 1 of each tile.
struct Lane {
  int id;

  __device__ int row() const { return id / 4; }
  __device__ int quarter() const { return id % 4; }  // t
  __device__ int first_sum() const { return id % 4 * 2; }
};

// Copies 16 bytes to shared memory past registers and L1; zeros without `is_there`.
__device__ inline void copy_async(void* to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

// The codes of 128 columns of each row: kPieces times 16 bytes for each lane. A lane reads what it
// copied itself, so that no barrier is needed.
template <int kTiles, int kPieces>
struct Stage {
  Bf16x8 codes[kTiles][kPieces][kWarpThreads];
};

// The first row of tile `tile` of part `part`, which has the rows of one block.
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

// Codec::locate(call, row, group, piece, lane) is where 16 bytes of a row lie, and null for none.
template <typename Codec, int kTiles, bool kGated>
__device__ inline void copy_stage(const typename Codec::Call& all, int part, int group,
                                  const Lane& lane, Stage<kTiles, Codec::kPieces>& to) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int64_t row = first_row<kTiles, kGated>(all.product, part, tile) + lane.row();
#pragma unroll
    for (int piece = 0; piece < Codec::kPieces; ++piece) {
      const void* from = Codec::locate(all, row, group, piece, lane);
      copy_async(&to.codes[tile][piece][lane.id], from == nullptr ? all.product.weight : from,
                 from != nullptr);
    }
  }
}

// The columns of x that a lane multiplies in a group: four times eight neighbours, from
// Codec::column(i, lane) of the group on.
template <typename Codec, bool kHigh>
struct Columns {
  Bf16x8 low[4] = {};
  Bf16x8 high[4] = {};  // x has rows 8 to 15

  __device__ void load(const SkinnyCall& call, const Lane& lane, int group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = group * kGroup + Codec::column(i, lane);
      const uint16_t* x = call.x + static_cast<int64_t>(lane.row()) * call.k + k;
      if (k < call.k && lane.row() < call.m) low[i] = *reinterpret_cast<const Bf16x8*>(x);
      if (kHigh && k < call.k && lane.row() + 8 < call.m) {
        high[i] = *reinterpret_cast<const Bf16x8*>(x + int64_t{8} * call.k);
      }
    }
  }

  __device__ void prepare() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low[i] = Codec::prepare(low[i]);
      if (kHigh) high[i] = Codec::prepare(high[i]);
    }
  }
};

// The sums of two parts, so that one barrier a part is enough.
template <int kTiles, int kPieces, int kWarps, int kDepth>
struct RingShared {
  Stage<kTiles, kPieces> ring[kWarps][kDepth];
  float4 sums[2][kWarps][kTiles][kWarpThreads];
};

// Codes are copied kDepth groups ahead, over the borders of parts too. Codec::Scales<kTiles,
// kGated> loads what belongs to a group and adds its products to sums.
template <typename Codec, int kTiles, int kWarps, int kDepth, bool kHigh, typename Out, bool kGated>
__global__ void __launch_bounds__(kWarps* kWarpThreads)
    skinny_codes(const __grid_constant__ typename Codec::Call all) {
  extern __shared__ __align__(16) std::byte dynamic_shared[];
  auto& shared =
      *reinterpret_cast<RingShared<kTiles, Codec::kPieces, kWarps, kDepth>*>(dynamic_shared);
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
      copy_stage<Codec, kTiles, kGated>(all, next.part, next.group, lane, shared.ring[warp][slot]);
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
      Columns<Codec, kHigh> x;
      x.load(call, lane, group);
      typename Codec::template Scales<kTiles, kGated> scales;
      scales.load(all, lane, part, group);
      asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
      x.prepare();
      scales.add_group(shared.ring[warp][slot], x, lane, sums);
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

template <typename Codec, int kTiles, int kWarps, int kDepth, bool kHigh, typename Out, bool kGated>
void launch_skinny_codes(CudaStream& stream, const typename Codec::Call& call, int blocks) {
  constexpr int kRows = (kGated ? kTiles / 2 : kTiles) * kTileRows;
  using Shared = RingShared<kTiles, Codec::kPieces, kWarps, kDepth>;
  const auto kernel = skinny_codes<Codec, kTiles, kWarps, kDepth, kHigh, Out, kGated>;
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
      "cudaFuncSetAttribute");
  const int32_t n = kGated ? call.product.gated : call.product.n;
  const int most = blocks * stream.cuda_device().properties().multiProcessorCount;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(std::min((n + kRows - 1) / kRows, most))),
      .block = dim3(kWarps * kWarpThreads),
      .shared_bytes = sizeof(Shared)};
  launch_early(stream, kernel, shape, call);
}

template <typename Codec, int kTiles, int kWarps, int kDepth, bool kHigh>
void launch_skinny_codes(CudaStream& stream, const typename Codec::Call& call, DType out,
                         int blocks) {
  if (call.product.gated > 0) {
    return launch_skinny_codes<Codec, kTiles, kWarps, kDepth, kHigh, uint16_t, true>(stream, call,
                                                                                     blocks);
  }
  out == DType::kF32 ? launch_skinny_codes<Codec, kTiles, kWarps, kDepth, kHigh, float, false>(
                           stream, call, blocks)
                     : launch_skinny_codes<Codec, kTiles, kWarps, kDepth, kHigh, uint16_t, false>(
                           stream, call, blocks);
}

// `blocks` are those of a multiprocessor at a time. Each codec chooses the shape by that of the
// weight alone, so that the bits of a row do not depend on the number of rows.
template <typename Codec, int kTiles, int kWarps, int kDepth>
void launch_skinny_codes(CudaStream& stream, const typename Codec::Call& call, DType out,
                         int blocks) {
  call.product.m > 8
      ? launch_skinny_codes<Codec, kTiles, kWarps, kDepth, true>(stream, call, out, blocks)
      : launch_skinny_codes<Codec, kTiles, kWarps, kDepth, false>(stream, call, out, blocks);
}

}  // namespace sluice::cuda
