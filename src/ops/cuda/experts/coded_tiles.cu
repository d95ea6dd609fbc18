// Experts of many rows whose weights are codes: up to 8 sorted pairs of an expert share its
// weights.
//
// Bound: bytes, the weights of the experts that were chosen, while these have few pairs; then
// taking codes apart, which each tile does again. Tile: that of skinny_ring.cuh, 4 or 8 pairs as
// its rows, which lie side by side after sort.cu; the parts of a tile follow each other, so that
// tiles of one expert find its weights in the L2 cache. A pair's bits do not depend on other pairs.
// Thread rule: enqueue only.
#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_check.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/experts/expert_tiles.cuh"
#include "ops/cuda/experts/experts.h"
#include "ops/cuda/matmul/e4m3_codec.cuh"
#include "ops/cuda/matmul/gguf_codec.cuh"
#include "ops/cuda/matmul/integer_codec.cuh"

namespace sluice::cuda {
namespace {

// What a kernel gets.
template <typename Codec>
struct TilesCall {
  typename Codec::Call weights;  // of the first expert; x and out of the first place
  int64_t stride;                // bytes from an expert to the next
  ExpertCall call;
  int32_t tile_rows;  // pairs of a tile: rows of x in the product
};

// A tile as a product of few rows, without the weight.
template <typename Out>
__device__ inline SkinnyCall product_of(const SkinnyCall& first, const ExpertTile& tile) {
  SkinnyCall product = first;
  const int64_t num_columns = first.gated > 0 ? first.gated : first.n;
  product.x += int64_t{tile.begin} * first.k;
  product.out = static_cast<Out*>(first.out) + tile.begin * num_columns;
  product.m = tile.end - tile.begin;
  return product;
}

// Parts of all tiles are walked in turn, as skinny_codes walks those of one weight. Which expert a
// part has is looked up twice, when its codes are asked for and when they are multiplied: the table
// lies in L1, and what a block keeps of it would need registers in its loop. Nothing is copied
// before the sort has ended, since the router chooses the experts.
template <typename Codec, int kDepth, bool kGates>
__global__ void __launch_bounds__(kRingThreads)
    multiply_tiles(const __grid_constant__ TilesCall<Codec> all) {
  using Out = std::conditional_t<kGates, uint16_t, float>;
  using BlockSums = SharedSums<false>;
  auto* dynamic_shared = reinterpret_cast<std::byte*>(dynamic_shared_memory());
  auto& ring = *reinterpret_cast<Ring<Codec, kDepth>*>(dynamic_shared);
  constexpr int kRows = kPartRows<kGates>;
  const ExpertCall& call = all.call;
  const SkinnyCall& first = all.weights.product;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Lane lane = {static_cast<int>(threadIdx.x) % kWarpThreads};
  const int parts_each = ((kGates ? first.gated : first.n) + kRows - 1) / kRows;
  const int num_groups = (first.k + kGroup - 1) / kGroup;
  let_next_kernel_start();
  wait_for_earlier_work();
  const int num_parts = call.first_tiles[call.num_experts] * parts_each;
  const auto tile_at = [&](int part) {
    return expert_tile(call.begins, call.first_tiles, call.num_experts, part / parts_each,
                       all.tile_rows);
  };
  Place next = {.part = static_cast<int>(blockIdx.x), .group = warp};
  if (warp >= num_groups) next.part = num_parts;  // a warp without columns
  const auto copy_next = [&](int slot) {
    if (next.part < num_parts) {
      const int64_t expert = tile_at(next.part).expert;
      copy_stage<Codec, kGates>(all.weights.at(expert * all.stride), next.part % parts_each,
                                next.group, lane, ring[warp][slot]);
      next.advance(num_groups);
    }
    end_of_copies();
  };
#pragma unroll
  for (int slot = 0; slot < kDepth; ++slot) copy_next(slot);
  int slot = 0;
  int turn = 0;
  for (int part = blockIdx.x; part < num_parts; part += gridDim.x, turn ^= 1) {
    // Rows of x past the tile's end are read as zeros, and not written.
    const SkinnyCall product = product_of<Out>(first, tile_at(part));
    Columns<Codec, false> x(product, lane);
    x.load(warp);
    Sums<kTilesOf<kRingEights>, false> sums;
    for (int group = warp; group < num_groups; group += kRingWarps) {
      wait_for_copies_but<kDepth - 1>();
      __syncwarp();  // scales were copied by other lanes
      x.prepare();
      Codec::add_group(ring[warp][slot], x, lane, sums);
      if (group + kRingWarps < num_groups) x.load(group + kRingWarps);
      __syncwarp();
      copy_next(slot);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    // Of two parts in turn, so that one barrier a part is enough.
    const int rows = all.tile_rows;
    BlockSums shared_sums(dynamic_shared + sizeof(ring) + turn * BlockSums::bytes(rows), rows);
    shared_sums.put(warp, lane, sums);
    __syncthreads();
    // Another warp each time, since the others go on.
    const int thread =
        static_cast<int>(threadIdx.x + (part / gridDim.x) * kWarpThreads) % kRingThreads;
    const auto total = [&](int x_row, int row) { return shared_sums.total(x_row, row); };
    if constexpr (kGates) {
      write_gated<kRows, kRingThreads>(product, part % parts_each, thread, total);
    } else {
      write_sums<kRows, kRingThreads, Out>(product, part % parts_each, thread, total);
    }
  }
}

template <typename Codec, int kDepth, bool kGates>
void launch_tiles(CudaStream& stream, const TilesCall<Codec>& call) {
  const auto kernel = multiply_tiles<Codec, kDepth, kGates>;
  constexpr auto kShared = ring_shared_bytes<Codec, kDepth, false>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kShared(ring_rows<Codec, kDepth, false>()))),
             "cudaFuncSetAttribute");
  launch_early(
      stream, kernel,
      {.grid = dim3(static_cast<unsigned>(stream.cuda_device().properties().multiProcessorCount)),
       .block = dim3(kRingThreads),
       .shared_bytes = kShared(call.tile_rows)},
      call);
}

// Whether a block has the larger ring, and so 8 pairs in a tile.
template <typename Codec>
bool has_large_ring(CudaStream& stream) {
  return all_shared_bytes<Codec, kRingDepth, false>(8) <=
         stream.cuda_device().properties().sharedMemPerBlockOptin;
}

// Integers with orders of columns have no tiles; multiplies_coded_tiles says so to the caller.
template <typename Codec, bool kGates>
void launch_codec(CudaStream& stream, const ExpertCall& call, const typename Codec::Call& weights) {
  if constexpr (Codec::kHasOrders) {
    SLUICE_CHECK(false, "expert tiles with orders");
  } else {
    const PackedExperts& experts = kGates ? call.gate_up : call.down;
    const TilesCall<Codec> tiles = {.weights = weights,
                                    .stride = static_cast<int64_t>(experts.stride_bytes),
                                    .call = call,
                                    .tile_rows = coded_tile_rows(stream, call)};
    has_large_ring<Codec>(stream) ? launch_tiles<Codec, kRingDepth, kGates>(stream, tiles)
                                  : launch_tiles<Codec, kSmallRingDepth, kGates>(stream, tiles);
  }
}

// fn(weights) with a Codec as its template parameter, for the call of an expert's format.
template <bool kGates, typename Fn>
void with_codec(const ExpertCall& call, Fn fn) {
  const PackedWeight& first = (kGates ? call.gate_up : call.down).first;
  SkinnyCall product = {};
  product.weight = first.data;
  product.x = kGates ? call.rows : call.act;
  product.out = kGates ? static_cast<void*>(call.act) : call.products;
  product.n = static_cast<int32_t>(first.num_rows);
  product.k = static_cast<int32_t>(first.num_cols);
  product.gated = kGates ? call.intermediate : 0;
  if (stores_gguf(first.format)) {
    const GgufCall weights = gguf_call(product, first);
    with_gguf_codec(weights.layout,
                    [&]<typename Codec>() { fn.template operator()<Codec>(weights); });
  } else if (stores_e4m3(first.format)) {
    fn.template operator()<E4m3Codec>(E4m3Call{product, e4m3_scales_of(first)});
  } else {
    const IntegerCall weights = {
        product, integer_layout(first.format, first.num_rows, first.num_cols), first.num_cols};
    with_integer_codec(weights.layout,
                       [&]<typename Codec>() { fn.template operator()<Codec>(weights); });
  }
}

template <bool kGates>
void multiply(CudaStream& stream, const ExpertCall& call) {
  with_codec<kGates>(call, [&]<typename Codec>(const typename Codec::Call& weights) {
    launch_codec<Codec, kGates>(stream, call, weights);
  });
}

// Of gates and of downs, whose codecs may differ: a GGUF file chooses formats by tensor.
template <bool kGates>
int32_t rows_of_tiles(CudaStream& stream, const ExpertCall& call) {
  int32_t rows = 0;
  with_codec<kGates>(call, [&]<typename Codec>(const auto&) {
    rows = has_large_ring<Codec>(stream) ? ring_rows<Codec, kRingDepth, false>()
                                         : ring_rows<Codec, kSmallRingDepth, false>();
  });
  return rows;
}

}  // namespace

bool multiplies_coded_tiles(const ExpertCall& call) {
  const auto has_kernel = [&](const PackedExperts& experts) {
    const WeightFormat format = experts.first.format;
    return has_coded_kernel(call, format) && format.num_orders == 0;
  };
  return has_kernel(call.gate_up) && has_kernel(call.down);
}

int32_t coded_tile_rows(CudaStream& stream, const ExpertCall& call) {
  return std::min(rows_of_tiles<true>(stream, call), rows_of_tiles<false>(stream, call));
}

void multiply_tile_gates(CudaStream& stream, const ExpertCall& call) {
  multiply<true>(stream, call);
}

void multiply_tile_downs(CudaStream& stream, const ExpertCall& call) {
  multiply<false>(stream, call);
}

}  // namespace sluice::cuda
