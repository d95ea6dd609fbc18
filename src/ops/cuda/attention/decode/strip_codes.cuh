// Tiles of codes in the strips of decode attention (strip.cuh): copied as they lie, and turned into
// operands of the products in registers.
//
// The scale of a token is left out of its codes, which then cost 32 instructions for 16 numbers,
// and goes to its scores and weights. That is exact, so the sums have the bits of those over bf16.
//
// ldmatrix moves two codes where it moves a bf16, so a lane has four neighbouring channels of a
// token's key, or two channels of two tokens' values. Words are split where that needs no byte to
// move: into codes 0 and 2 and codes 1 and 3 (TurnedWord). So a step of 16 channels of a key has
// another order, which the queries follow, and rows of O^T stand for other channels (Partial).
//
// Piece i (16 bytes) of row r lies at place i xor r; of heads of 64 channels, two rows of which
// fill the banks, at i xor r / 2. Thread rule: device code, whole warps.
#pragma once

#include <nv/target>

#include "ops/cuda/attention/decode/strip_parts.cuh"
#include "ops/cuda/attention/decode/strip_products.cuh"
#include "ops/cuda/instructions.cuh"
#include "ops/cuda/kv_codec.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::decode {

// Tensor cores of sm_90 add the 16 products of a step at once, whatever their order; older ones add
// 8, then the other 8.
__device__ __forceinline__ bool steps_have_order() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (return false;), (return true;))
}

__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}

// Codes 0 and 2 of a word, and codes 1 and 3, as bf16 without the factor of their row. The product
// makes them normal numbers: with subnormal ones the last bits of sums were not those of bf16.
struct TurnedWord {
  uint32_t even;
  uint32_t odd;
};
__device__ __forceinline__ TurnedWord turn_word(const KvCodec& codec, uint32_t word) {
  constexpr uint32_t kPower = 0x7f007f00u;  // 2^127
  // A shift of these leaves a sign in its place, too.
  const uint32_t even =
      extend_signs(word) << (8 - codec.shift) & (0x80008000u | 0x007f007fu << (8 - codec.shift));
  const uint32_t odd = (word & 0x80008000u) | (word & 0x7f007f00u) >> codec.shift;
  return {.even = multiply_pairs(even, kPower), .odd = multiply_pairs(odd, kPower)};
}

// Starts the copy of a tile. Rows that are not visible are not read and become 0; their scales are.
template <typename C>
__device__ __forceinline__ void copy_codes(const uint16_t* source, int32_t visible, int32_t lane,
                                           CodedTile<C>& tile) {
  constexpr uint32_t kPiecesOfRow = C::kHeadDim / 16;
  constexpr int kRowsOfCopy = kWarpThreads / kPiecesOfRow;
  const auto thread = static_cast<uint32_t>(lane);  // divided without a branch for its sign
  const uint32_t row = thread / kPiecesOfRow;
  const uint32_t place = thread % kPiecesOfRow ^ (C::kHeadDim == 64 ? row / 2 : row);
  const uint32_t to = row * C::kHeadDim + place * 16;
  const uint32_t codes = shared_address(tile.codes);
  const uint16_t* from = source + thread * 8;
#pragma unroll
  for (int first = 0; first < kTileTokens; first += kRowsOfCopy) {
    // row and first have no bit in common, as in copy_rows; half of 8 is no multiple of 4.
    const uint32_t turn = C::kHeadDim == 64 ? 0 : first % 8 * 16;
    copy_16(codes + first * C::kHeadDim + (to ^ turn), from + first * (C::kHeadDim / 2),
            first + static_cast<int32_t>(row) < visible);
  }
  if (lane == 0) copy_16(tile.scales, source + C::kHeadDim * 8, true);
}

// Four matrices of words: tokens 0 to 7 and 8 to 15 of piece 2 * pair, then of the next piece.
template <typename C, bool kTransposed>
__device__ __forceinline__ void load_words(const CodedTile<C>& tile, int pair, int32_t lane,
                                           uint32_t (&words)[4]) {
  const auto thread = static_cast<uint32_t>(lane);
  const uint32_t row = thread % 16;
  const uint32_t piece = (thread / 16 ^ (C::kHeadDim == 64 ? row / 2 % 4 : row % 8)) * 16;
  load_matrices<kTransposed>(
      shared_address(tile.codes[row]) + (piece ^ pair % 4 * 32) + pair / 4 * 128, words);
}

// A lane's four channels of a step so that turn_word gives those of bf16: channels 2 c and 2 c + 1,
// and the same of the other 8, instead of 4 c to 4 c + 3.
__device__ __forceinline__ uint32_t order_channels(uint32_t word, int32_t lane) {
  const int32_t from = (lane & ~3) + lane % 4 / 2;
  const uint32_t low = __shfl_sync(kFullWarp, word, from);
  const uint32_t high = __shfl_sync(kFullWarp, word, from + 2);
  return __byte_perm(low, high, lane % 2 == 0 ? 0x5140 : 0x7362);
}

// A lane's operands of step `step` of a query; `at` gives the address of an even channel of the
// step.
template <typename At>
__device__ __forceinline__ void load_channels(At at, int step, int32_t lane, uint32_t* operands) {
  const uint32_t c = static_cast<uint32_t>(lane) % 4;
  if (steps_have_order()) {
    operands[0] = *reinterpret_cast<const uint32_t*>(at(step, 2 * c));
    operands[1] = *reinterpret_cast<const uint32_t*>(at(step, 8 + 2 * c));
  } else {
    const uint2 channels = *reinterpret_cast<const uint2*>(at(step, 4 * c));
    operands[0] = __byte_perm(channels.x, channels.y, 0x5410);
    operands[1] = __byte_perm(channels.x, channels.y, 0x7632);
  }
}

// Loads the queries from shared memory, where copy_rows has put them.
template <typename C>
__device__ __forceinline__ void load_queries_of_codes(
    const uint16_t (&rows)[C::kHeads][C::kHeadDim], int32_t lane, Queries<C>& queries) {
  const uint32_t head = static_cast<uint32_t>(lane) / 4;
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const uint16_t* row = rows[t * kHeadsPerTile + head];
    // The piece of a step's channel is 2 * step + channel / 8: without a bit in common.
    const auto at = [=](int step, uint32_t channel) {
      return row + (((channel / 8 ^ head) * 8 + channel % 8) ^ step * 16u);
    };
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      load_channels(at, step, lane, queries.data[t][step / 2] + step % 2 * 2);
    }
  }
}

// Loads the queries of heads that exist from memory, zeros for others.
template <typename C>
__device__ __forceinline__ void load_wide_queries_of_codes(const uint16_t* rows, int32_t num_heads,
                                                           int32_t lane, Queries<C>& queries) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const int32_t head = t * kHeadsPerTile + lane / 4;
    const auto at = [=](int step, uint32_t channel) {
      return rows + head * C::kHeadDim + step * 16 + channel;
    };
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      uint32_t* operands = queries.data[t][step / 2] + step % 2 * 2;
      operands[0] = operands[1] = 0;
      if (head < num_heads) load_channels(at, step, lane, operands);
    }
  }
}

// sums += K Q^T, without the factors of keys.
template <typename C>
__device__ __forceinline__ void add_products_of_codes(const KvCodec& codec,
                                                      const CodedTile<C>& tile,
                                                      const Queries<C>& queries, int32_t lane,
                                                      float (&sums)[C::kHeadTiles][2][4]) {
#pragma unroll
  for (int pair = 0; pair < C::kSteps / 2; ++pair) {
    uint32_t words[4];
    load_words<C, false>(tile, pair, lane, words);
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // a step
      if (steps_have_order()) {
        words[2 * half] = order_channels(words[2 * half], lane);
        words[2 * half + 1] = order_channels(words[2 * half + 1], lane);
      }
      const TurnedWord low = turn_word(codec, words[2 * half]);  // tokens 0 to 7
      const TurnedWord high = turn_word(codec, words[2 * half + 1]);
#pragma unroll
      for (int t = 0; t < C::kHeadTiles; ++t) {
        const uint32_t* q = queries.data[t][pair] + 2 * half;
        multiply(sums[t][half], low.even, high.even, low.odd, high.odd, q[0], q[1]);
      }
    }
  }
}

// The product that a sum of add_products_of_codes stands for.
__device__ __forceinline__ float score_of_codes(const KvCodec& codec, float sum, uint8_t scale) {
  return __fmul_rn(sum, __uint_as_float(row_factors(codec, scale) & 0xffff0000u));
}

// Multiplies weights, as right operands, by the factors of their tokens' values; those of tokens
// that are not visible, whose scales may be anything, become 0.
template <typename C>
__device__ __forceinline__ void scale_weights(const KvCodec& codec, const CodedTile<C>& tile,
                                              int32_t visible, int32_t lane,
                                              uint32_t (&weights)[C::kHeadTiles][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t token = half * 8 + lane % 4 * 2;
    const uint32_t first = token < visible ? row_factors(codec, tile.scales[token]) : 0u;
    const uint32_t second = token + 1 < visible ? row_factors(codec, tile.scales[token + 1]) : 0u;
    const uint32_t factors = __byte_perm(first, second, 0x5410);
#pragma unroll
    for (int t = 0; t < C::kHeadTiles; ++t) {
      weights[t][half] = multiply_pairs(weights[t][half], factors);
    }
  }
}

// acc += V^T P^T, with weights of scale_weights.
template <typename C>
__device__ __forceinline__ void add_values_of_codes(const KvCodec& codec, const CodedTile<C>& tile,
                                                    const uint32_t (&weights)[C::kHeadTiles][2],
                                                    int32_t lane, Partial<C>& partial) {
#pragma unroll
  for (int pair = 0; pair < C::kSteps / 2; ++pair) {
    uint32_t words[4];
    load_words<C, true>(tile, pair, lane, words);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TurnedWord low = turn_word(codec, words[2 * half]);  // tokens 0 to 7
      const TurnedWord high = turn_word(codec, words[2 * half + 1]);
#pragma unroll
      for (int t = 0; t < C::kHeadTiles; ++t) {
        multiply(partial.acc[t][2 * pair + half], low.even, low.odd, high.even, high.odd,
                 weights[t][0], weights[t][1]);
      }
    }
  }
}

}  // namespace sluice::cuda::decode
