// One KV tile in a CTA of the general prefill kernel: copies to shared memory and products.
//
// Used by attention/prefill/sm80.cuh, which decides the tiles and their order. Thread rule: device
// code; all threads of the CTA call these together.
#pragma once

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/attention/prefill/sm80.h"
#include "ops/cuda/kv_codec.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::sm80 {

// kChannels: head_dim rounded up; the channels from head_dim on are zeros in shared memory.
// kCoded: K and V in codes, which are copied by way of registers. kZones: queries differ by zones
// of keys.
template <int kChannelsValue, int kTileTokensValue, bool kCodedValue, bool kZonesValue = false>
struct Config {
  static constexpr bool kZones = kZonesValue;
  static constexpr int kChannels = kChannelsValue;
  static constexpr int kTileTokens = kTileTokensValue;
  static constexpr bool kCoded = kCodedValue;
  static constexpr int kNumRows = kRowsPerTile;
  static constexpr int kNumThreads = kNumRows / 16 * 32;
  // 16 bytes after each row put the 8 rows that an ldmatrix reads at once into different banks.
  static constexpr int kRowElements = kChannels + 8;
};

// One tile of each: K of the next tile overwrites this one's K after the scores.
template <typename C>
struct alignas(16) Shared {
  uint16_t q[C::kNumRows][C::kRowElements];
  uint16_t k[C::kTileTokens][C::kRowElements];
  uint16_t v[C::kTileTokens][C::kRowElements];
};

// ---- Copies and products, one instruction each.

// Four 8x8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed(const void* row, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(shared_address(row))
               : "memory");
}

// d += a * b: 16 rows by 8 columns over 16.
__device__ __forceinline__ void multiply(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Tiles.

// Copies the tile's rows of q; rows after the last and channels from head_dim on are zeros. With
// zones they are those of the keys of the chunk that begins at `chunk_begin`, and rows may lie in
// several chunks.
template <typename C>
__device__ __forceinline__ void copy_queries(const PrefillParams& p, const PrefillTile& tile,
                                             Shared<C>& shared, int chunk_begin = 0) {
  constexpr int kChunks = C::kChannels / 8;
  for (int i = threadIdx.x; i < C::kNumRows * kChunks; i += C::kNumThreads) {
    const int row = i / kChunks;
    const int channel = i % kChunks * 8;
    const int64_t head_row = head_row_of(p, tile, tile.first_row + row);
    const bool present = head_row >= 0 && channel < p.head_dim;
    const uint16_t* queries = p.q;
    if constexpr (C::kZones) queries = queries_of_row(p, tile, tile.first_row + row, chunk_begin);
    const uint16_t* source = present ? queries + head_row * p.head_dim + channel : p.q;
    copy_16(&shared.q[row][channel], source, present);
  }
}

// Copies tokens [begin, begin + kTileTokens) of K or of V, which lie side by side at `from`. Those
// from `end` on become zeros: their weight is 0, but 0 * NaN is NaN.
template <typename C>
__device__ __forceinline__ void copy_tokens(const PrefillParams& p, const uint16_t* from, int begin,
                                            int end,
                                            uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
  constexpr int kChunks = C::kChannels / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < C::kTileTokens * kChunks; i += C::kNumThreads) {
    const int token = i / kChunks;
    const int channel = i % kChunks * 8;
    const bool present = begin + token < end && channel < p.head_dim;
    copy_16(&to[token][channel], present ? from + token * p.head_dim + channel : from, present);
  }
}

// The same of tokens in codes, which lie in tiles of 16 rows and their scales, as bf16. Not
// asynchronous: loads are in flight together, but the copy ends with them.
template <typename C>
__device__ __forceinline__ void turn_tokens(const PrefillParams& p, const std::byte* from,
                                            int begin, int end,
                                            uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
  constexpr int kChunks = C::kChannels / 16;
#pragma unroll 4
  for (int i = threadIdx.x; i < C::kTileTokens * kChunks; i += C::kNumThreads) {
    const int token = i / kChunks;
    const int channel = i % kChunks * 16;
    const bool present = begin + token < end && channel < p.head_dim;
    const std::byte* tile = from + token / 16 * 16 * (p.head_dim + 1);
    uint4 codes = {};
    uint32_t factors = 0;
    if (present) {
      codes = *reinterpret_cast<const uint4*>(tile + token % 16 * p.head_dim + channel);
      factors = row_factors(p.codec, static_cast<uint32_t>(tile[16 * p.head_dim + token % 16]));
    }
    auto* row = reinterpret_cast<Bf16x8*>(&to[token][channel]);
    row[0] = turn_codes(p.codec, uint2{codes.x, codes.y}, factors);
    row[1] = turn_codes(p.codec, uint2{codes.z, codes.w}, factors);
  }
}

// Copies K (plane 0) or V (plane 1) of the tile that begins at token `begin`.
template <typename C>
__device__ __forceinline__ void copy_tile(const PrefillParams& p, const PrefillTile& tile,
                                          int begin, int plane,
                                          uint16_t (&to)[C::kTileTokens][C::kRowElements]) {
  const int offset = begin - tile.kv_begin;
  const int32_t* table = p.block_table + static_cast<int64_t>(tile.seq) * p.max_blocks;
  const int64_t block = table[offset / p.block_tokens];
  const std::byte* base = p.kv_base + block * p.kv_stride_bytes;
  const int64_t token =
      static_cast<int64_t>(2 * tile.kv_head + plane) * p.block_tokens + offset % p.block_tokens;
  if constexpr (C::kCoded) {
    turn_tokens<C>(p, base + token * (p.head_dim + 1), begin, tile.kv_end, to);
  } else {
    const auto* from = reinterpret_cast<const uint16_t*>(base) + token * p.head_dim;
    copy_tokens<C>(p, from, begin, tile.kv_end, to);
  }
}

// s = q k^T for the warp's 16 rows.
template <typename C>
__device__ __forceinline__ void multiply_scores(const Shared<C>& shared, int warp, int lane,
                                                float (&s)[C::kTileTokens / 2]) {
#pragma unroll
  for (int i = 0; i < C::kTileTokens / 2; ++i) s[i] = 0.0f;
  const uint16_t* q_row = &shared.q[warp * 16 + lane % 16][lane / 16 * 8];
  // Lanes 0-15 address tokens 0-7 of a group of 16 (channels 0-7, then 8-15), lanes 16-31 the rest.
  const uint16_t* k_row = &shared.k[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8];
#pragma unroll
  for (int channel = 0; channel < C::kChannels; channel += 16) {
    uint32_t a[4];
    load_matrices(q_row + channel, a);
#pragma unroll
    for (int token = 0; token < C::kTileTokens; token += 16) {
      uint32_t b[4];
      load_matrices(k_row + token * C::kRowElements + channel, b);
      multiply(&s[token / 2], a, b[0], b[1]);
      multiply(&s[token / 2 + 4], a, b[2], b[3]);
    }
  }
}

// o += weights v for the warp's 16 rows.
template <typename C>
__device__ __forceinline__ void multiply_values(const Shared<C>& shared, int lane,
                                                const uint32_t (&weights)[C::kTileTokens / 4],
                                                float (&o)[C::kChannels / 2]) {
  // Lanes 0-15 address tokens 0-15 of channels 0-7, lanes 16-31 those of channels 8-15.
  const uint16_t* v_row = &shared.v[lane % 16][lane / 16 * 8];
#pragma unroll
  for (int token = 0; token < C::kTileTokens; token += 16) {
#pragma unroll
    for (int channel = 0; channel < C::kChannels; channel += 16) {
      uint32_t b[4];
      load_transposed(v_row + token * C::kRowElements + channel, b);
      multiply(&o[channel / 2], &weights[token / 4], b[0], b[1]);
      multiply(&o[channel / 2 + 4], &weights[token / 4], b[2], b[3]);
    }
  }
}

}  // namespace sluice::cuda::sm80
