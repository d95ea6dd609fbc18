// Decode attention over few windows in one kernel: a cluster of blocks computes the windows of a
// sequence and KV head, a block each, and folds them through distributed shared memory.
//
// Used by attention/decode/decode.cc for contexts of up to 2K tokens, head_dim 64 and 128, when all
// clusters can run at once. Bound: latency; one launch is shorter than two kernels. Tile: a warp
// has a strip, as in attention/decode/block.cu; results of windows are pushed to the blocks that
// fold them, 32 channels of a head per warp, so that after the one barrier of the cluster a block
// reads its own shared memory only. Bits are those of attention/decode/block.cu and combine.cu.
#include <algorithm>
#include <bit>

#include <nv/target>

#include "ops/cuda/attention/decode/block.cuh"
#include "ops/cuda/attention/decode/fold.cuh"
#include "ops/cuda/attention/decode/kernels.h"
#include "ops/cuda/common_launch.cuh"

namespace sluice::cuda {
namespace {

using namespace decode;  // strips

constexpr int kWarps = kMaxWindowTokens / kStripTokens;
constexpr int kThreads = kWarps * kWarpThreads;
constexpr int kChunk = kWarpThreads;  // channels of a head that a warp folds
constexpr int kQuadsOfChunk = kChunk / 4;

// The barrier of the cluster in two halves: writes before the first are visible after the second.
// Before compute capability 9.0 there are no clusters, and this kernel is not launched.
__device__ __forceinline__ void arrive_at_cluster() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("barrier.cluster.arrive.release;" ::: "memory");))
}
__device__ __forceinline__ void wait_for_cluster() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("barrier.cluster.wait.acquire;" ::: "memory");))
}

// The address of `mine` in the shared memory of block `rank`; `push` writes a value there.
__device__ __forceinline__ uint32_t address_in_block(const void* mine, uint32_t rank) {
  uint32_t address = 0;
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                                                : "=r"(address)
                                                : "r"(shared_address(mine)), "r"(rank));))
  return address;
}
__device__ __forceinline__ void push(float4* mine, uint32_t rank, float4 value) {
  const uint32_t address = address_in_block(mine, rank);
  NV_IF_TARGET(NV_PROVIDES_SM_90,
               (asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address),
                             "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
                             : "memory");))
}
__device__ __forceinline__ void push(float2* mine, uint32_t rank, float2 value) {
  const uint32_t address = address_in_block(mine, rank);
  NV_IF_TARGET(NV_PROVIDES_SM_90,
               (asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address),
                             "f"(value.x), "f"(value.y)
                             : "memory");))
}

// Results of all windows for the chunks that this block folds: [number][window]. Chunk c of the
// heads is number c / blocks of block c % blocks.
struct Inbox {
  float4* acc;  // kQuadsOfChunk for each entry
  float2* max_sums;
  uint32_t shift;  // the cluster has 1 << shift blocks, and at most as many windows
  // The block of a chunk, its number there, and the entry of a number and window.
  __device__ uint32_t rank_of(int32_t chunk) const { return chunk & ((1u << shift) - 1); }
  __device__ int32_t number_of(int32_t chunk) const { return chunk >> shift; }
  __device__ int32_t place_of(int32_t number, int32_t window) const {
    return (number << shift) + window;
  }
};

// Entries of an inbox, [number][window], for heads of this many chunks.
__host__ __device__ constexpr int32_t inbox_places(int32_t num_chunks, int32_t num_blocks) {
  return (num_chunks + num_blocks - 1) / num_blocks * num_blocks;
}

// Adds up the strips of a window and pushes each chunk to the block that folds it.
template <typename C>
__device__ __forceinline__ void push_window(const Place& place, const Inbox& inbox,
                                            const float2 (*max_sums)[C::kHeads],
                                            const Room<C>* rooms) {
  constexpr int32_t kQuads = C::kHeadDim / 4;
  constexpr int32_t kStride = sizeof(Room<C>) / sizeof(float);
  for (int32_t i = threadIdx.x; i < place.num_heads * kQuads; i += kThreads) {
    const int32_t head = i / kQuads;
    const int32_t channel = i % kQuads * 4;
    float2 max_sum;
    const float4 acc =
        sum_of_window<C>(max_sums, &rooms[0].acc[head][channel], kStride, head, max_sum);
    const int32_t chunk = i / kQuadsOfChunk;
    const int32_t quad = i % kQuadsOfChunk;
    const int32_t index = inbox.place_of(inbox.number_of(chunk), static_cast<int32_t>(blockIdx.x));
    push(&inbox.acc[index * kQuadsOfChunk + quad], inbox.rank_of(chunk), acc);
    if (quad == 0) push(&inbox.max_sums[index], inbox.rank_of(chunk), max_sum);
  }
}

// Folds a chunk. A thread is a channel and computes all steps itself: there are few, and exchanging
// them between lanes would take longer.
template <typename C>
__device__ __forceinline__ void fold_chunk(const DecodeParams& p, const DecodeRow& row,
                                           const Inbox& inbox, int32_t head, int32_t channel_index,
                                           int32_t number) {
  const int32_t lane = threadIdx.x % kWarpThreads;
  float2* max_sums = inbox.max_sums + inbox.place_of(number, 0);
  const float* accs = &inbox.acc[inbox.place_of(number, 0) * kQuadsOfChunk].x + lane;
  float max = -INFINITY;
  Channel channel;
  if (starts_from_state(p, row)) {
    const int64_t index = state_index(p, p.from, blockIdx.z, row.row, head);
    max = p.from.max[index];
    channel.sum = p.from.sum[index];
    channel.acc = p.from.acc[index * C::kHeadDim + channel_index];
  }
#pragma unroll
  for (int32_t window = 0; window < kMaxClusterWindows; ++window) {
    if (window >= row.num_windows) break;
    const float2 own = max_sums[window];
    const float after = fmaxf(own.x, max);
    const FoldStep step = fold_step(own, max, after);
    max = after;
    channel.acc = __fmaf_rn(channel.acc, step.keep, weighted(accs[window * kChunk], step.weight));
    channel.sum = __fmaf_rn(channel.sum, step.keep, step.sum);
  }
  if (p.out != nullptr) {
    p.out[(row.row * p.num_q_heads + head) * C::kHeadDim + channel_index] = output_of(channel);
    return;
  }
  const int64_t index = state_index(p, p.to, blockIdx.z, row.row, head);
  p.to.acc[index * C::kHeadDim + channel_index] = channel.acc;
  __syncwarp();
  if (lane == 0) max_sums[0] = {max, channel.sum};
}

// Folds the chunks of this block.
template <typename C>
__device__ __forceinline__ void fold(const DecodeParams& p, const Place& place,
                                     const DecodeRow& row, const Inbox& inbox) {
  constexpr int32_t kChunks = C::kHeadDim / kChunk;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpThreads);
  const int32_t num_chunks = place.num_heads * kChunks;
  const auto chunk_of = [&](int32_t number) {
    return (number << inbox.shift) + static_cast<int32_t>(blockIdx.x);
  };
  for (int32_t i = warp; chunk_of(i) < num_chunks; i += kWarps) {
    const int32_t chunk = chunk_of(i);
    fold_chunk<C>(p, row, inbox, place.first_head + chunk / kChunks,
                  chunk % kChunks * kChunk + lane, i);
  }
  if (p.out != nullptr) return;
  // The state may be updated in place: after this barrier all chunks of a head have read its
  // maximum and sum, and one of them writes the new ones.
  arrive_at_cluster();
  wait_for_cluster();
  for (int32_t i = warp; chunk_of(i) < num_chunks; i += kWarps) {
    const int32_t chunk = chunk_of(i);
    if (chunk % kChunks != 0 || lane != 0) continue;
    const int64_t index =
        state_index(p, p.to, blockIdx.z, row.row, place.first_head + chunk / kChunks);
    p.to.max[index] = inbox.max_sums[inbox.place_of(i, 0)].x;
    p.to.sum[index] = inbox.max_sums[inbox.place_of(i, 0)].y;
  }
}

// grid: blocks of a cluster (one window each, or none) x (KV head, tiles of its query heads) x
// sequences.
template <typename C>
__global__ void __launch_bounds__(kThreads, 1) decode_in_cluster(const DecodeParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ float2 max_sums[kWarps][C::kHeads];
  arrive_at_cluster();  // other blocks write to this one only after it has begun
  let_next_kernel_start();
  const Place place = make_place<C>(p);
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpThreads);
  const auto warp = static_cast<int32_t>(threadIdx.x / kWarpThreads);
  auto* rooms = reinterpret_cast<Room<C>*>(shared);
  Inbox inbox;
  inbox.shift = __popc(gridDim.x - 1);  // gridDim.x is a power of two
  inbox.acc = reinterpret_cast<float4*>(rooms + kWarps);
  const int32_t num_chunks = min(p.group, C::kHeads) * (C::kHeadDim / kChunk);
  inbox.max_sums = reinterpret_cast<float2*>(
      inbox.acc + inbox_places(num_chunks, static_cast<int32_t>(gridDim.x)) * kQuadsOfChunk);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const int32_t block = block_of_window<false>(p, place.seq, index);
  const DecodeRow row = decode_row(p, place.seq);
  const bool has_window = index < row.num_windows;
  Strip strip = {};
  if (has_window) {
    const DecodeWindow window =
        make_window<false>(p, row, place.seq, place.kv_head, index, block, lane);
    strip = make_strip<C>(p, window, place.kv_head, warp);
  }
  const uint16_t* queries = p.q + (row.row * p.num_q_heads + place.first_head) * C::kHeadDim;
  // Addresses are computed during the wait for the earlier kernel.
  keep_here(strip.keys[0]);
  keep_here(queries);
  wait_for_earlier_work();  // tables may be read before, queries and KV may not
  if (row.row < 0) return;  // for all blocks of the cluster, which have the same sequence
  if (has_window) {
    copy_strip(strip, static_cast<int64_t>(p.block_tokens) * C::kHeadDim, queries, place.num_heads,
               lane, rooms[warp]);
  }
  wait_for_cluster();
  if (has_window) {
    Partial<C> partial;
    work_out(p, strip, nullptr, false, lane, rooms[warp], partial);
    store_strip(place.num_heads, lane, partial, &rooms[warp].acc[0][0], max_sums[warp]);
    __syncthreads();
    push_window(place, inbox, max_sums, rooms);
  }
  arrive_at_cluster();
  wait_for_cluster();
  fold<C>(p, place, row, inbox);
}

template <typename C>
void launch(CudaStream& stream, const DecodeParams& p) {
  const int32_t parts = (p.group + C::kHeads - 1) / C::kHeads;
  const auto num_blocks = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(p.num_windows)));
  const int32_t num_chunks = std::min(p.group, C::kHeads) * (C::kHeadDim / kChunk);
  const size_t shared_bytes =
      kWarps * sizeof(Room<C>) + static_cast<size_t>(inbox_places(num_chunks, num_blocks)) *
                                     (kQuadsOfChunk * sizeof(float4) + sizeof(float2));
  check_cuda(cudaFuncSetAttribute(decode_in_cluster<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             "cudaFuncSetAttribute");
  launch_early(stream, decode_in_cluster<C>,
               {.grid = dim3(static_cast<unsigned>(num_blocks),
                             static_cast<unsigned>(p.num_kv_heads * parts),
                             static_cast<unsigned>(p.num_seqs)),
                .block = dim3(kThreads),
                .shared_bytes = shared_bytes,
                .cluster_blocks = num_blocks},
               p);
}

}  // namespace

void launch_decode_in_cluster(CudaStream& stream, const DecodeParams& p) {
  const bool is_wide = p.head_dim == 128;
  if (p.group <= kHeadsPerTile) {
    return is_wide ? launch<Config<128, 1, false>>(stream, p)
                   : launch<Config<64, 1, false>>(stream, p);
  }
  return is_wide ? launch<Config<128, 2, false>>(stream, p)
                 : launch<Config<64, 2, false>>(stream, p);
}

}  // namespace sluice::cuda
