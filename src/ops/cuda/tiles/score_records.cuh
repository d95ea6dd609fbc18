// From scores in registers to records: the log-sum-exp of a row over each KV tile.
//
// Used by every kernel of score_tiles. A thread has 32 scores of each of two rows, as the products
// of tensor cores leave them; the four lanes of a quad share a row. Bound: exponentials, one for
// each score. A record takes some 40 instructions of one warp, which has few others beside it:
// where a branch stood between two tiles, each waited for the latencies of the one before, and
// records of cells took half as long as their products. So tiles are added up side by side, without
// branches, and only what is not visible is masked before. Thread rule: device code; whole warps.
#pragma once

#include <cstdint>

#include "ops/cuda/attention/fragment.cuh"
#include "ops/cuda/tiles/score_call.cuh"
#include "ops/cuda/tiles/score_panel.cuh"

namespace sluice::cuda::tiles {

// Where a packed row's records are, and what it sees.
struct RowPlace {
  int32_t record = 0;  // index of the row of records
  int32_t limit = 0;   // first position that it does not see; 0: there is no such row
};

// Of the lanes that hold the columns of one tile: the quad, a pair, or one.
template <int kTileKeys>
__device__ __forceinline__ float tile_max(float x) {
  if constexpr (kTileKeys >= 4) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  if constexpr (kTileKeys >= 8) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
  return x;
}
template <int kTileKeys>
__device__ __forceinline__ float tile_sum(float x) {
  if constexpr (kTileKeys >= 4) x = __fadd_rn(x, __shfl_xor_sync(kFullWarp, x, 1));
  if constexpr (kTileKeys >= 8) x = __fadd_rn(x, __shfl_xor_sync(kFullWarp, x, 2));
  return x;
}

// What is added to the scaled product of a pool of which a row sees `num_tokens` tokens.
template <int kKeyTokens>
__device__ __forceinline__ float bias_of(const ScoreCall& call, int32_t num_tokens) {
  if (num_tokens <= 0) return -INFINITY;
  return num_tokens >= kKeyTokens ? call.pool_log : logf(static_cast<float>(num_tokens));
}

// How the scores of a row lie in the four lanes that hold it, by tiles of kTileKeys key vectors:
// value i of a lane is s[4 (i / 2) + 2 r + i % 2], of column i / 2 * 8 + 2 (lane % 4) + i % 2. A
// lane has kTurns tiles with kCount values each, and kSharers lanes have the same tiles.
template <int kTileKeys>
struct LaneTiles {
  static constexpr int kCount = kTileKeys >= 8 ? kTileKeys / 4 : kTileKeys > 1 ? 2 : 1;
  static constexpr int kTurns = 32 / kCount;
  static constexpr int kSharers = kTileKeys >= 8 ? 4 : kTileKeys == 4 ? 2 : 1;

  __device__ static int column(int lane, int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; }
  __device__ static int tile(int lane, int turn) { return column(lane, turn * kCount) / kTileKeys; }
};

// Makes the products of row r with key vectors from the num_visible-th token on -inf, and those
// with pools whole scores: scaled, with the logarithm of their visible tokens.
template <int kTileKeys, bool kHasPools>
__device__ __forceinline__ void hide_invisible(const ScoreCall& call, int32_t num_visible, int r,
                                               float (&s)[64]) {
  using Tiles = LaneTiles<kTileKeys>;
  constexpr int kKeyTokens = kMaskTileTokens / kTileKeys;
  const int lane = threadIdx.x % kWarpThreads;
  const bool is_whole = num_visible >= kKeysAtOnce * kKeyTokens;
  if constexpr (kHasPools) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& value = s[i / 2 * 4 + 2 * r + i % 2];
      const int32_t key = Tiles::column(lane, i);
      const float bias =
          is_whole ? call.pool_log : bias_of<kKeyTokens>(call, num_visible - key * kKeyTokens);
      value = bias == -INFINITY ? bias : __fmaf_rn(value, call.scale, bias);
    }
  } else if (!is_whole) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (Tiles::column(lane, i) * kKeyTokens >= num_visible) {
        s[i / 2 * 4 + 2 * r + i % 2] = -INFINITY;
      }
    }
  }
}

// Of the tiles that a lane has of its two rows: the largest score, and the sum of the exponentials
// less it. No branches, and both rows side by side in chains of their own: a warp has few others
// beside it to hide the latency of an addition.
template <int kTileKeys>
struct TileSums {
  using Tiles = LaneTiles<kTileKeys>;
  float largest[2][Tiles::kTurns];
  float sum[2][Tiles::kTurns];

  // `factor_log2` turns a value of s into the exponent of a power of 2.
  __device__ __forceinline__ TileSums(float factor_log2, const float (&s)[64]) {
#pragma unroll
    for (int turn = 0; turn < Tiles::kTurns; ++turn) find_largest(turn, s);
#pragma unroll
    for (int turn = 0; turn < Tiles::kTurns; ++turn) add_up(factor_log2, turn, s);
  }

 private:
  static constexpr int kCount = Tiles::kCount;
  static constexpr int kChains = kCount < 4 ? kCount : 4;

  __device__ static float value(const float (&s)[64], int turn, int r, int i) {
    return s[(turn * kCount + i) / 2 * 4 + 2 * r + (turn * kCount + i) % 2];
  }
  __device__ __forceinline__ void find_largest(int turn, const float (&s)[64]) {
    float most[2][kChains];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& chain = most[r][i % kChains];
        chain = i < kChains ? value(s, turn, r, i) : fmaxf(chain, value(s, turn, r, i));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = most[r][0];
#pragma unroll
      for (int i = 1; i < kChains; ++i) all = fmaxf(all, most[r][i]);
      largest[r][turn] = tile_max<kTileKeys>(all);
    }
  }
  __device__ __forceinline__ void add_up(float factor_log2, int turn, const float (&s)[64]) {
    float sums[2][kChains];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float base = __fmul_rn(largest[r][turn], factor_log2);
        const float term = exp2_approx(__fmaf_rn(value(s, turn, r, i), factor_log2, -base));
        sums[r][i % kChains] = i < kChains ? term : __fadd_rn(sums[r][i % kChains], term);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float all = sums[r][0];
#pragma unroll
      for (int i = 1; i < kChains; ++i) all = __fadd_rn(all, sums[r][i]);
      sum[r][turn] = tile_sum<kTileKeys>(all);
    }
  }
};

// Writes the records of row r. Lanes that share tiles take every kSharers-th of them.
template <int kTileKeys>
__device__ __forceinline__ void write_records_of(const ScoreCall& call, const ScoreRun& run,
                                                 const RowPlace& place, int32_t first_token,
                                                 float factor, int r,
                                                 const TileSums<kTileKeys>& of) {
  using Tiles = LaneTiles<kTileKeys>;
  const int lane = threadIdx.x % kWarpThreads;
  const int share = lane % Tiles::kSharers;
  float* records = call.records + static_cast<int64_t>(place.record) * call.num_kv_tiles +
                   first_token / kMaskTileTokens;
  const int32_t num_tiles =
      (min(place.limit, run.kv_end) - first_token + kMaskTileTokens - 1) / kMaskTileTokens;
#pragma unroll
  for (int turn = 0; turn < Tiles::kTurns; turn += Tiles::kSharers) {
    float largest = of.largest[r][turn];
    float sum = of.sum[r][turn];
    int tile = Tiles::tile(lane, turn);
#pragma unroll
    for (int i = 1; i < Tiles::kSharers && turn + i < Tiles::kTurns; ++i) {
      if (share != i) continue;
      largest = of.largest[r][turn + i];
      sum = of.sum[r][turn + i];
      tile = Tiles::tile(lane, turn + i);
    }
    const bool is_writer = turn + share < Tiles::kTurns && tile < num_tiles;
    if (is_writer) records[tile] = __fmaf_rn(largest, factor, __logf(sum));
  }
}

// Writes the records of the thread's two rows: s[4 j + 2 r + e] is column 8 j + 2 (lane % 4) + e
// of row r. Overwrites s. A score that is not visible is -inf whatever the product is. kHasPools:
// the key vectors are pools.
template <int kTileKeys, bool kHasPools = false>
__device__ __forceinline__ void write_records(const ScoreCall& call, const ScoreRun& run,
                                              const RowPlace (&places)[2], int32_t first_token,
                                              float (&s)[64]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t num_visible = min(places[r].limit, run.kv_end) - first_token;
    hide_invisible<kTileKeys, kHasPools>(call, num_visible, r, s);
  }
  const float factor = kHasPools ? 1.0f : call.scale;
  const float factor_log2 = __fmul_rn(factor, kLog2E);
  const TileSums<kTileKeys> sums(factor_log2, s);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    write_records_of<kTileKeys>(call, run, places[r], first_token, factor, r, sums);
  }
}

}  // namespace sluice::cuda::tiles
