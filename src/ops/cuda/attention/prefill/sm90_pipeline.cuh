// The stages of the Hopper prefill kernels: sizes, shared memory, barriers and the copy of a tile.
//
// Used by the producers and consumers of attention/prefill/sm90.cuh and sm90_lists.cuh; stages are
// all that they share. The copy engine fills a stage (`full`), each of the 8 consumer warps
// releases it (`empty`), and the producer fills it again. K and V of a tile have barriers of their
// own, since K is free earlier. Thread rule: device code; each function says which threads call it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "ops/cuda/shared_copy.cuh"
#include "ops/cuda/shared_pipeline.cuh"
#include "ops/cuda/wgmma.cuh"

namespace sluice::cuda::sm90 {

// Sizes of one instantiation. Two stages of K and V, and q twice, fit shared memory at head_dim 128
// and tiles of 128 tokens; at 256 tiles of 64 tokens, and q once: 192 KiB.
// kZones: queries differ by zones of keys. kOverSet: so they do over a mask (sm90_tiles.cuh).
template <int kHeadDimValue, int kTileTokensValue, bool kZonesValue = false>
struct Config {
  static constexpr bool kZones = kZonesValue;
  static constexpr bool kOverSet = false;
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kTileTokens = kTileTokensValue;
  static constexpr int kStages = 2;
  static constexpr int kQueryBuffers = kHeadDim > 128 ? 1 : 2;
  static constexpr int kGroupRows = 64;  // rows of a consumer warpgroup
  static constexpr int kNumConsumers = 2;
  static constexpr int kNumRows = kGroupRows * kNumConsumers;
  static constexpr int kNumThreads = 128 * (1 + kNumConsumers);
  static constexpr int kNumPanels = kHeadDim / 64;  // panels of 64 channels, 128 bytes a row
  static constexpr int kQueryPanelBytes = kGroupRows * kSwizzleRowBytes;
  static constexpr int kPanelBytes = kTileTokens * kSwizzleRowBytes;
  static constexpr int kTileBytes = kNumPanels * kPanelBytes;  // of K, and of V
  // 64 K registers: 240 * 256 + 24 * 128 threads. Accumulators take 64 + 64, weights 32; at
  // head_dim 256 128 + 32 and 16.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
};

// Tiles are aligned to 1024 bytes, the period of the 128-byte swizzle.
template <typename C>
struct alignas(1024) Shared {
  // With two buffers the next item's rows are copied while this one is attended.
  std::byte q[C::kQueryBuffers][C::kNumConsumers][C::kNumPanels * C::kQueryPanelBytes];
  std::byte k[C::kStages][C::kTileBytes];
  std::byte v[C::kStages][C::kTileBytes];
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  uint64_t v_full[C::kStages], v_empty[C::kStages];
  uint32_t ticket;  // of the CTA, in launches with split tiles
};

// Named barriers: 1 and 2 are the turns of consumers 0 and 1, 3 and 4 synchronise the threads of
// one consumer.
inline constexpr int kTurnBarrier = 1;
inline constexpr int kGroupBarrier = 3;

// Where the i-th KV tile of the CTA is in the ring of stages.
template <typename C>
struct Stage {
  int index;
  uint32_t parity;
  __device__ explicit Stage(int tile) : index(tile % C::kStages), parity(tile / C::kStages & 1) {}
};

// Asks the copy engine for one tile, K or V (`plane`), panel by panel; all bytes count on
// `barrier`. One thread calls it.
template <typename C>
__device__ __forceinline__ void copy_tile(const CUtensorMap* map, uint32_t destination,
                                          uint32_t barrier, int token, int plane, int block) {
  barrier_arrive_expecting(barrier, C::kTileBytes);
#pragma unroll
  for (int panel = 0; panel < C::kNumPanels; ++panel) {
    copy_box(destination + panel * C::kPanelBytes, map, barrier, panel * 64, token, plane, block);
  }
}

// Arrivals of the producer at a full stage.
struct ProducerArrivals {
  uint32_t of_keys = 1;
  uint32_t of_values = 1;
};

// Initialises the barriers; all threads of the CTA call it. A stage is full by its bytes and the
// producer's arrivals, empty by one arrival of each consumer warp. Null: no tensor map is used.
template <typename C>
__device__ __forceinline__ void begin_pipeline(Shared<C>& shared, const CUtensorMap* kv_map,
                                               ProducerArrivals arrivals = {}) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(shared_address(&shared.k_full[i]), arrivals.of_keys);
      barrier_init(shared_address(&shared.v_full[i]), arrivals.of_values);
      barrier_init(shared_address(&shared.k_empty[i]), 4 * C::kNumConsumers);
      barrier_init(shared_address(&shared.v_empty[i]), 4 * C::kNumConsumers);
    }
    barrier_init_fence();
    if (kv_map != nullptr) prefetch_tensor_map(kv_map);
  }
  __syncthreads();
}

// The CTA's shared memory.
template <typename SharedType>
__device__ __forceinline__ SharedType& aligned_shared(std::byte* bytes) {
  return *reinterpret_cast<SharedType*>(first_unit(bytes));
}

// The dynamic shared memory of a kernel, with room to align it.
template <typename SharedType>
constexpr int shared_bytes() {
  return sizeof(SharedType) + 1024;
}

}  // namespace sluice::cuda::sm90
