// The part of prefill attention in one thread's registers: masks, the online softmax, and loads and
// stores of rows.
//
// Used by both prefill kernels, because a warp of mma.sync (m16n8) and a warp of wgmma (m64nN) hold
// a 16-row accumulator in the same way: element 4 * j + e of a thread is row lane / 4 + 8 * (e /
// 2), column 8 * j + 2 * (lane % 4) + e % 2.
//
// All arithmetic has explicit roundings (__fmaf_rn, __fmul_rn): a tile must give the same bits
// whether the compiler placed it in a prologue, in a loop or after a mask, and cutting a walk moves
// it between these. Thread rule: device code, whole warps.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/attention/prefill/params.h"
#include "ops/cuda/common.cuh"
#include "ops/cuda/instructions.cuh"

namespace sluice::cuda {

// Position after the last token of a list: larger than every token.
inline constexpr int32_t kNoToken = 0x7fffffff;

// One CTA's work: a tile of packed rows of one sequence and KV head.
struct PrefillTile {
  int32_t seq = 0;
  int32_t kv_head = 0;
  int32_t first_row = 0;   // first packed row of the tile, counted inside the sequence
  int32_t num_rows = 0;    // packed rows of the sequence
  int32_t row_offset = 0;  // query row at which the sequence begins
  int32_t first_pos = 0;   // position of that row
  int32_t kv_begin = 0;
  int32_t kv_end = 0;
  bool starts_empty = false;

  // Position of packed row `row`; rows after the last one have that of the last, so that their
  // (unused) numbers stay ordinary.
  __device__ int32_t position(int32_t row, int32_t group) const {
    return first_pos + min(row, num_rows - 1) / group;
  }
  // One past the last token that packed row `row` may see.
  __device__ int32_t limit(int32_t row, int32_t group) const {
    return min(kv_end, position(row, group) + 1);
  }
  // KV tiles that `count` rows from `row` on need; 0 when there is no such row.
  __device__ int32_t num_kv_tiles(int32_t row, int32_t count, int32_t group,
                                  int32_t tile_tokens) const {
    if (row >= num_rows) return 0;
    return (max(limit(row + count - 1, group) - kv_begin, 0) + tile_tokens - 1) / tile_tokens;
  }
};

// Launch order: sections of `heads_together` KV heads whose K and V fit the L2 cache, then the
// sequences' tiles, from the last of a sequence (longest under the causal mask) to its first, so
// that short ones fill the gaps at the end, then heads. The tiles of a batch are found by counting:
// the host knows only an upper bound of their number, and tiles after the last have no rows.
__device__ inline PrefillTile tile_at(const PrefillParams& p, int32_t index, int32_t rows) {
  PrefillTile tile;
  tile.kv_head =
      index / p.heads_together / p.num_q_tiles * p.heads_together + index % p.heads_together;
  int32_t behind = index / p.heads_together % p.num_q_tiles;  // tiles before this one
  int32_t end = p.row_begin[0];
  for (; tile.seq < p.num_seqs; ++tile.seq) {
    tile.row_offset = end;
    end = p.row_begin[tile.seq + 1];
    tile.num_rows = (end - tile.row_offset) * p.group;
    const int32_t num_tiles = (tile.num_rows + rows - 1) / rows;
    if (behind < num_tiles) {
      tile.first_row = (num_tiles - 1 - behind) * rows;
      tile.first_pos = p.first_pos[tile.seq];
      tile.kv_begin = p.kv_begin[tile.seq];
      tile.kv_end = p.kv_end[tile.seq];
      tile.starts_empty = p.first || tile.kv_begin == 0;
      return tile;
    }
    behind -= num_tiles;
  }
  tile.num_rows = 0;
  return tile;
}

// Whether a tile that sees no token in this run need not be written: there is no output yet, and
// the state in memory is already right.
__device__ inline bool state_stays(const PrefillParams& p, const PrefillTile& tile) {
  return !p.last && !tile.starts_empty;
}

// The softmax state of the two rows of a thread; its quad (4 lanes) holds the same numbers.
struct RowPair {
  int64_t head_row[2];  // query row * num_q_heads + head: where q, out and state lie; -1: no row
  int32_t limit[2];     // one past the last token that the row sees
  float max[2];         // natural units, after scaling
  float sum[2];
};

// Index of packed row `row` in q, out and state, or -1 after the last row.
__device__ inline int64_t head_row_of(const PrefillParams& p, const PrefillTile& tile,
                                      int32_t row) {
  if (row >= tile.num_rows) return -1;
  const int32_t query_row = row / p.group;
  const int32_t head = tile.kv_head * p.group + (row - query_row * p.group);
  return static_cast<int64_t>(tile.row_offset + query_row) * p.num_q_heads + head;
}

// The queries of packed row `row` for the keys of the chunk that begins at `chunk_begin`; those of
// rows after the last, or of rows before the chunk, do not matter.
__device__ inline const uint16_t* queries_of_row(const PrefillParams& p, const PrefillTile& tile,
                                                 int32_t row, int32_t chunk_begin) {
  const int32_t after = tile.position(row, p.group) - chunk_begin - p.chunk_tokens;
  if (after < 0) return p.q;
  return after < p.chunk_tokens ? p.q_before : p.q_far;
}

// Where the walk of a tile of rows needs other queries: at borders of chunks, from the one on where
// the first row no longer is two chunks ahead.
class ZoneBorders {
 public:
  __device__ ZoneBorders() {}
  // `first_token`: where the walk begins. REQUIRES: a multiple of KV tiles, which divide a chunk.
  __device__ ZoneBorders(const PrefillParams& p, const PrefillTile& tile, int32_t first_row,
                         int32_t first_token)
      : chunk_tokens_(p.chunk_tokens) {
    const int32_t position = tile.position(first_row, p.group);
    const int32_t before = position - position % chunk_tokens_ - chunk_tokens_;
    const int32_t after_begin = chunk_begin(first_token) + chunk_tokens_;
    next_ = max(before, after_begin);
  }

  // The first token of the chunk of a token.
  __device__ int32_t chunk_begin(int32_t token) const { return token - token % chunk_tokens_; }
  // Whether a walk that comes to the tile at `token` needs the queries of another zone. In a walk
  // that leaves tiles out, the first tile behind a border does.
  __device__ bool reaches(int32_t token) const { return token >= next_; }
  // Passes the border. REQUIRES: reaches(token).
  __device__ void pass(int32_t token) { next_ = chunk_begin(token) + chunk_tokens_; }

 private:
  int32_t chunk_tokens_ = 0;
  int32_t next_ = kNoToken;
};

// `first_row`: packed row of the first of the warp's 16 rows.
__device__ inline RowPair make_row_pair(const PrefillParams& p, const PrefillTile& tile,
                                        int32_t first_row, int32_t lane) {
  RowPair rows;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t row = first_row + lane / 4 + 8 * r;
    rows.head_row[r] = head_row_of(p, tile, row);
    rows.limit[r] = tile.limit(row, p.group);
    const bool read = !tile.starts_empty && rows.head_row[r] >= 0;
    rows.max[r] = read ? p.max[rows.head_row[r]] : -INFINITY;
    rows.sum[r] = read ? p.sum[rows.head_row[r]] : 0.0f;
  }
  return rows;
}

// Reads the accumulator of an earlier call, or zeros. Columns from head_dim on are zeros.
// Each thread loads the pairs it needs, so that the wait for memory is at their first use, after
// the first tile's scores; loading whole lines and distributing them by shuffles was slower.
template <int kColumns>
__device__ __forceinline__ void load_accumulator(const PrefillParams& p, const PrefillTile& tile,
                                                 const RowPair& rows, int32_t lane,
                                                 float (&o)[kColumns / 2]) {
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) o[i] = 0.0f;
  if (tile.starts_empty) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows.head_row[r] < 0) continue;
    const float* row = p.acc + rows.head_row[r] * p.head_dim + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (8 * j >= p.head_dim) continue;
      const float2 pair = *reinterpret_cast<const float2*>(row + 8 * j);
      o[4 * j + 2 * r] = pair.x;
      o[4 * j + 2 * r + 1] = pair.y;
    }
  }
}

// Gives scores of tokens that a row may not see the value -inf, whatever they were.
template <int kTokens>
__device__ __forceinline__ void mask_scores(const RowPair& rows, int32_t tile_begin, int32_t lane,
                                            float (&s)[kTokens / 2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t visible = rows.limit[r] - tile_begin - 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      if (8 * j >= visible) s[4 * j + 2 * r] = -INFINITY;
      if (8 * j + 1 >= visible) s[4 * j + 2 * r + 1] = -INFINITY;
    }
  }
}

// The maximum over the 4 lanes that share two rows; all of them get it.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// The same bits in all four lanes, since a + b is b + a.
__device__ __forceinline__ float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// One tile of the online softmax: turns scores into weights p = exp(scale * s - max) in place,
// updates max and sum, and returns in `alpha` the factors of the older sums.
//
// The sum is reduced over the quad for each tile (4 shuffles) instead of once at the end: the state
// between calls has one number per row, and a cut must not change a bit.
template <int kTokens>
__device__ __forceinline__ void softmax_tile(float scale, RowPair& rows, float (&s)[kTokens / 2],
                                             float (&alpha)[2]) {
  const float scale_log2 = __fmul_rn(scale, kLog2E);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float even = s[2 * r];
    float odd = s[2 * r + 1];
#pragma unroll
    for (int j = 1; j < kTokens / 8; ++j) {
      even = fmaxf(even, s[4 * j + 2 * r]);
      odd = fmaxf(odd, s[4 * j + 2 * r + 1]);
    }
    // Rounding is monotone, so the largest scaled score is the scaled largest score.
    const float tile_max = __fmul_rn(quad_max(fmaxf(even, odd)), scale);
    const float max = fmaxf(rows.max[r], tile_max);
    const float base = max == -INFINITY ? 0.0f : max;  // -inf - -inf would be NaN
    alpha[r] = exp2_approx(__fmul_rn(__fsub_rn(rows.max[r], base), kLog2E));
    rows.max[r] = max;
    const float base_log2 = __fmul_rn(base, kLog2E);
    even = odd = 0.0f;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      float& a = s[4 * j + 2 * r];
      float& b = s[4 * j + 2 * r + 1];
      a = exp2_approx(__fmaf_rn(a, scale_log2, -base_log2));
      b = exp2_approx(__fmaf_rn(b, scale_log2, -base_log2));
      even = __fadd_rn(even, a);
      odd = __fadd_rn(odd, b);
    }
    rows.sum[r] = __fmaf_rn(rows.sum[r], alpha[r], quad_sum(__fadd_rn(even, odd)));
  }
}

// o *= factor by rows. Mostly no maximum of a warp's rows changes and every factor is 1: the
// product is then left out, which changes no bit.
template <int kColumns>
__device__ __forceinline__ void scale_accumulator(const float (&factor)[2],
                                                  float (&o)[kColumns / 2]) {
  if (!__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) o[i] = __fmul_rn(o[i], factor[i / 2 % 2]);
}

// Two f32 to two bf16 in one register, round to nearest even; `low` is the first column.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Weights as the left operand of P V: four registers for each 16 tokens. An accumulator's columns
// 8j, 8j + 1 of two neighbouring 8-column groups are exactly an operand's.
template <int kTokens>
__device__ __forceinline__ void pack_weights(const float (&s)[kTokens / 2],
                                             uint32_t (&p)[kTokens / 4]) {
#pragma unroll
  for (int i = 0; i < kTokens / 4; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

// Takes a pair of columns of each of four neighbouring 8-column groups and gives the eight columns
// of group lane % 4: a 4 x 4 transpose inside the quad, so that a thread writes 16 bytes and a warp
// touches each cache line of its rows a quarter as often.
__device__ __forceinline__ uint4 gather_eight(const uint32_t (&pairs)[4], int32_t lane) {
  const bool odd = lane % 2 != 0;
  const uint32_t from0 = __shfl_xor_sync(0xffffffffu, odd ? pairs[0] : pairs[1], 1);
  const uint32_t from1 = __shfl_xor_sync(0xffffffffu, odd ? pairs[2] : pairs[3], 1);
  const uint2 low = odd ? make_uint2(from0, pairs[1]) : make_uint2(pairs[0], from0);
  const uint2 high = odd ? make_uint2(from1, pairs[3]) : make_uint2(pairs[2], from1);
  const bool upper = lane % 4 >= 2;
  const uint32_t x = __shfl_xor_sync(0xffffffffu, upper ? low.x : high.x, 2);
  const uint32_t y = __shfl_xor_sync(0xffffffffu, upper ? low.y : high.y, 2);
  return upper ? make_uint4(x, y, high.x, high.y) : make_uint4(low.x, low.y, x, y);
}

// Writes out = acc / sum.
template <int kColumns>
__device__ __forceinline__ void store_out(const PrefillParams& p, const RowPair& rows, int32_t lane,
                                          const float (&o)[kColumns / 2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // A row that saw no token has sum 0 and gets 0.
    const float inverse = rows.sum[r] == 0.0f ? 0.0f : __frcp_rn(rows.sum[r]);
#pragma unroll
    for (int i = 0; i < kColumns / 32; ++i) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int index = 16 * i + 4 * j + 2 * r;
        pairs[j] = pack_bf16(__fmul_rn(o[index], inverse), __fmul_rn(o[index + 1], inverse));
      }
      const uint4 eight = gather_eight(pairs, lane);
      const int32_t column = 32 * i + lane % 4 * 8;
      if (rows.head_row[r] >= 0 && column < p.head_dim) {
        *reinterpret_cast<uint4*>(p.out + rows.head_row[r] * p.head_dim + column) = eight;
      }
    }
  }
}

// Writes the state for the next call.
template <int kColumns>
__device__ __forceinline__ void store_state(const PrefillParams& p, const RowPair& rows,
                                            int32_t lane, const float (&o)[kColumns / 2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows.head_row[r] < 0) continue;
    float* row = p.acc + rows.head_row[r] * p.head_dim + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      if (8 * j >= p.head_dim) continue;
      *reinterpret_cast<float2*>(row + 8 * j) = make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
    }
    if (lane % 4 == 0) {
      p.max[rows.head_row[r]] = rows.max[r];
      p.sum[rows.head_row[r]] = rows.sum[r];
    }
  }
}

// Writes the output after the last call of a walk, the state after an earlier one.
template <int kColumns>
__device__ __forceinline__ void store_rows(const PrefillParams& p, const RowPair& rows,
                                           int32_t lane, const float (&o)[kColumns / 2]) {
  if (p.last) {
    store_out<kColumns>(p, rows, lane, o);
  } else {
    store_state<kColumns>(p, rows, lane, o);
  }
}

}  // namespace sluice::cuda
