// Prefill attention for Hopper over KV in codes of one byte: the kernel of
// attention/prefill/sm90.cuh, whose producer is a whole warpgroup that turns each tile into bf16 on
// its way to a stage.
//
// One thread brings a tile of keys, and one of values, as they lie in memory (numbers and scales
// side by side) through the copy engine, one tile ahead; 128 threads read it, write what it stands
// for where the copy engine would have written bf16, and release the stage to the consumers, which
// are those of bf16. Bound: as there, as long as the turning, about 50 instructions for 16 numbers,
// fits beside the softmax. Everything is attended: calls with lists or masks take the general
// kernel. Thread rule: device code.
#pragma once

#include "ops/cuda/attention/prefill/sm90.cuh"
#include "ops/cuda/kv_codec.cuh"

namespace sluice::cuda::sm90 {

// 232 * 256 + 40 * 128 are 63 K of the 64 K registers.
template <int kHeadDim, int kTileTokens, bool kZones>
struct CodesConfig : Config<kHeadDim, kTileTokens, kZones> {
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kTokenBytes = kHeadDim + 1;
  static constexpr int kRawBytes = kTileTokens * kTokenBytes;
};

// At head_dim 128 and tiles of 128 tokens this is all the shared memory that a CTA can have.
template <typename C>
struct alignas(1024) CodesShared {
  Shared<C> tiles;
  std::byte raw[2][C::kRawBytes];  // keys and values as they lie
  uint64_t raw_full[2];
};

inline constexpr int kRawBarrier = 5;  // a named barrier of the producer's threads

// Asks the copy engine for a tile of keys (plane 0) or values (plane 1). One thread calls it.
template <typename C>
__device__ __forceinline__ void bring_raw(const PrefillParams& p, CodesShared<C>& shared,
                                          int kv_head, int plane, int token, int block) {
  const int64_t line = static_cast<int64_t>(2 * kv_head + plane) * p.block_tokens + token;
  const std::byte* from = p.kv_base + block * p.kv_stride_bytes + line * C::kTokenBytes;
  const uint32_t full = shared_address(&shared.raw_full[plane]);
  barrier_arrive_expecting(full, C::kRawBytes);
  copy_bytes(shared_address(shared.raw[plane]), from, C::kRawBytes, full);
}

// Writes what a tile stands for, in panels of 64 channels with the swizzle of the copy engine.
template <typename C>
__device__ __forceinline__ void turn_tile(const KvCodec& codec, const std::byte* raw,
                                          std::byte* to) {
  constexpr int kPieces = C::kHeadDim / 16;  // of 16 numbers, of a row
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < C::kTileTokens * kPieces; i += 128) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    // 16 rows, then their scales.
    const std::byte* group = raw + row / 16 * 16 * C::kTokenBytes;
    const uint4 codes =
        *reinterpret_cast<const uint4*>(group + row % 16 * C::kHeadDim + piece * 16);
    const uint32_t factors =
        row_factors(codec, static_cast<uint32_t>(group[16 * C::kHeadDim + row % 16]));
    std::byte* line = to + piece / 4 * C::kPanelBytes + row * kSwizzleRowBytes;
    const int chunk = piece % 4 * 2;  // of 8 channels
    *reinterpret_cast<Bf16x8*>(line + (chunk ^ row % 8) * 16) =
        turn_codes(codec, uint2{codes.x, codes.y}, factors);
    *reinterpret_cast<Bf16x8*>(line + ((chunk + 1) ^ row % 8) * 16) =
        turn_codes(codec, uint2{codes.z, codes.w}, factors);
  }
}

// Turns the CTA's `step`-th tile of one plane into its stage. All threads of the producer call it;
// afterwards the raw tile may be overwritten.
template <typename C>
__device__ __forceinline__ void fill_stage(const PrefillParams& p, CodesShared<C>& shared, int step,
                                           int plane) {
  const Stage<C> stage(step);
  Shared<C>& tiles = shared.tiles;
  uint64_t* full = plane == 0 ? tiles.k_full : tiles.v_full;
  uint64_t* empty = plane == 0 ? tiles.k_empty : tiles.v_empty;
  barrier_wait(shared_address(&shared.raw_full[plane]), step & 1);
  // The first round finds every stage empty: the phase before the first has parity 1.
  barrier_wait(shared_address(&empty[stage.index]), stage.parity ^ 1);
  turn_tile<C>(p.codec, shared.raw[plane],
               plane == 0 ? tiles.k[stage.index] : tiles.v[stage.index]);
  shared_write_fence();
  barrier_arrive(shared_address(&full[stage.index]));
  named_barrier_sync(kRawBarrier, 128);
}

// Fills stages with the KV tiles of one tile of rows; the first is the CTA's `step`-th.
template <typename C, bool kSplits>
__device__ __forceinline__ void produce_turned(const PrefillParams& p, const Item& tile,
                                               CodesShared<C>& shared, int num_kv_tiles, int step) {
  const int32_t* table = p.block_table + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const int tiles_per_block = p.block_tokens / C::kTileTokens;
  const int first_block = kSplits ? tile.first_block : 0;
  const auto bring = [&](int i, int plane) {
    if (threadIdx.x != 0 || i >= num_kv_tiles) return;
    const int block = table[first_block + i / tiles_per_block];
    bring_raw<C>(p, shared, tile.kv_head, plane, i % tiles_per_block * C::kTileTokens, block);
  };
  bring(0, 0);
  bring(0, 1);
  for (int i = 0; i < num_kv_tiles; ++i) {
#pragma unroll 1
    for (int plane = 0; plane < 2; ++plane) {
      fill_stage<C>(p, shared, step + i, plane);
      bring(i + 1, plane);
    }
  }
}

// Fills stages for all items of the CTA, in the order in which the consumers attend them.
template <typename C, bool kSplits>
__device__ __forceinline__ void produce_all_turned(const PrefillParams& p, CodesShared<C>& shared) {
  const ItemRange range(p, cta_index<kSplits>(shared.tiles));
  int step = 0;
  for (int i = range.begin; i < range.end; ++i) {
    const Item tile = item_at<kSplits>(p, i);
    const int count = tile.num_kv_tiles(tile.first_row, C::kNumRows, p.group, C::kTileTokens);
    produce_turned<C, kSplits>(p, tile, shared, count, step);
    step += count;
  }
}

// grid: as prefill_kernel.
template <typename C, bool kSplits>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    prefill_codes_kernel(const __grid_constant__ PrefillParams p) {
  extern __shared__ std::byte shared_bytes[];
  auto& shared = aligned_shared<CodesShared<C>>(shared_bytes);
  if constexpr (kSplits) take_ticket<C>(p, shared.tiles);
  if (threadIdx.x == 0) {
    for (uint64_t& full : shared.raw_full) barrier_init(shared_address(&full), 1);
  }
  begin_pipeline<C>(shared.tiles, nullptr, {.of_keys = 128, .of_values = 128});
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    produce_all_turned<C, kSplits>(p, shared);
  } else {
    take_registers<C::kConsumerRegisters>();
    const ItemRange range(p, cta_index<kSplits>(shared.tiles));
    consume_all<C>(
        p, shared.tiles, range, [&](int i) { return item_at<kSplits>(p, i); },
        attend_if_needed<C, kSplits>);
  }
}

template <int kHeadDim, int kTileTokens>
cudaError_t launch_codes(cudaStream_t stream, const PrefillParams& p) {
  // Calls of few rows take this kernel, so tiles with zones are not split.
  if (p.chunk_tokens > 0) {
    using Z = CodesConfig<kHeadDim, kTileTokens, true>;
    return launch<Z, CodesShared<Z>>(stream, prefill_codes_kernel<Z, false>, p, p);
  }
  using C = CodesConfig<kHeadDim, kTileTokens, false>;
  auto* kernel = p.num_split > 0 ? prefill_codes_kernel<C, true> : prefill_codes_kernel<C, false>;
  return launch<C, CodesShared<C>>(stream, kernel, p, p);
}

// Chooses the KV tile as launch_head_dim.
template <int kHeadDim>
cudaError_t launch_codes_head_dim(cudaStream_t stream, const PrefillParams& p) {
  return tile_tokens(kHeadDim, p.block_tokens) == 128 ? launch_codes<kHeadDim, 128>(stream, p)
                                                      : launch_codes<kHeadDim, 64>(stream, p);
}

}  // namespace sluice::cuda::sm90
