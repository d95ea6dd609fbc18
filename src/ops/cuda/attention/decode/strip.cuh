// Strips of decode attention: one warp computes 32 tokens of a window for up to 16 heads.
//
// Used by block.cu, listed.cu and wave.cu of attention/decode. Thread rule: device
// code, whole warps.
//
// Both products have tokens (or channels) in the 16 rows and query heads in the 8 columns of
// mma.m16n8k16, because 1 to 8 heads share K and V; lane = 4 g + c:
//   scores  S^T = K Q^T: ldmatrix takes 16 tokens x 16 channels out of shared memory.
//   output  O^T = V^T P^T: the same with .trans. The first product leaves P^T with tokens in rows;
//           movmatrix transposes it into the operand.
// Piece i (16 bytes) of row r lies in shared memory at place i xor r, so that eight rows of a
// column of pieces are in different banks. strip_codes.cuh has what differs with KV in codes.
#pragma once

#include "ops/cuda/attention/decode/strip_codes.cuh"
#include "ops/cuda/attention/decode/strip_parts.cuh"
#include "ops/cuda/attention/decode/strip_products.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::decode {

// Strip `index` of a window. Tiles that are not listed or after the row's last token have 0 visible
// tokens, and their keys are not read.
template <typename C>
__device__ __forceinline__ Strip make_strip(const DecodeParams& p, const DecodeWindow& window,
                                            int32_t kv_head, int32_t index) {
  Strip strip;
  const int32_t num_tokens = min(window.kv_end - window.begin, p.window_tokens);
  const int32_t left = num_tokens - index * kStripTokens;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    const int32_t tile = index * kTiles + i;
    const bool is_present = !C::kListed || (window.tiles >> tile & 1u) != 0;
    strip.visible[i] = is_present ? max(min(left - i * kTileTokens, kTileTokens), 0) : 0;
    strip.keys[i] = tile_keys<C::kListed, C::kCodes>(p, window, kv_head, C::kHeadDim, tile);
    strip.shifts[i] = shift_of_values<C::kListed, C::kCodes>(p, window, C::kHeadDim, tile);
  }
  return strip;
}

// Starts the copy of kRows rows; the first `visible` are read, the others become 0.
template <typename C, int kRows>
__device__ __forceinline__ void copy_rows(const uint16_t* source, int32_t visible, int32_t lane,
                                          uint16_t (&rows)[kRows][C::kHeadDim]) {
  constexpr int kRowBytes = C::kHeadDim * 2;
  const int32_t row = lane / C::kPieces;
  const int32_t piece = lane % C::kPieces;
  const uint16_t* from = source + row * C::kHeadDim + piece * 8;
  const uint32_t to = shared_address(rows) + row * kRowBytes + (piece ^ row) * 16;
#pragma unroll
  for (int first = 0; first < kRows; first += C::kRowsOfCopy) {
    // The place is piece ^ (row + first): row and first have no bit in common, so the sum is an
    // xor, and one xor with a constant per step suffices.
    copy_16(first * kRowBytes + (to ^ (first % 8 * 16)), from + first * C::kHeadDim,
            first + row < visible);
  }
}

// Starts the copy of a tile of keys or values.
template <typename C>
__device__ __forceinline__ void copy_tile(const uint16_t* source, int32_t visible, int32_t lane,
                                          CodedTile<C>& tile) {
  copy_codes<C>(source, visible, lane, tile);
}
template <typename C>
__device__ __forceinline__ void copy_tile(const uint16_t* source, int32_t visible, int32_t lane,
                                          Rows<C>& tile) {
  copy_rows<C, kTileTokens>(source, visible, lane, tile);
}

// The values of tile `i`, `values_offset` elements after the keys.
template <typename C>
__device__ __forceinline__ const uint16_t* strip_values(const Strip& strip, int i,
                                                        int64_t values_offset) {
  const uint16_t* values = strip.keys[i] + values_offset;
  if constexpr (C::kCodes == KvCodes::kValues) values -= strip.shifts[i];
  return values;
}

// Starts the copy of the strip's keys and closes a group of copies, which includes copies started
// before. Tokens that are not visible are not read: they may be NaN, and 0 * NaN is NaN.
template <typename C>
__device__ __forceinline__ void copy_keys(const Strip& strip, int32_t lane,
                                          StripBuffers<C>& buffers) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (strip.visible[i] > 0) {
      copy_tile<C>(strip.keys[i], strip.visible[i], lane, buffers.keys[i]);
    }
  }
  end_of_copies();
}

// The same for its values.
template <typename C>
__device__ __forceinline__ void copy_values(const Strip& strip, int64_t values_offset, int32_t lane,
                                            StripBuffers<C>& buffers) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (strip.visible[i] > 0) {
      copy_tile<C>(strip_values<C>(strip, i, values_offset), strip.visible[i], lane,
                   buffers.values[i]);
    }
  }
  end_of_copies();
}

// Starts the copies of queries and the strip's keys, then of its values: two groups of copies.
template <typename C>
__device__ __forceinline__ void copy_strip(const Strip& strip, int64_t values_offset,
                                           const uint16_t* queries, int32_t num_heads, int32_t lane,
                                           WarpBuffers<C>& buffers) {
  copy_rows<C, C::kHeads>(queries, num_heads, lane, buffers.queries);
  copy_keys(strip, lane, buffers.strips[0]);
  copy_values(strip, values_offset, lane, buffers.strips[0]);
}

// Loads the queries from shared memory as right operands, in the layout of Queries.
template <typename C>
__device__ __forceinline__ void load_queries(const uint16_t (&rows)[C::kHeads][C::kHeadDim],
                                             int32_t lane, Queries<C>& queries) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const uint32_t row = shared_address(rows[t * kHeadsPerTile + lane % 8]);
    const int32_t piece = (lane / 8 ^ lane % 8) * 16;
#pragma unroll
    for (int pair = 0; pair < C::kSteps / 2; ++pair) {  // of steps: four pieces
      load_matrices<false>(row + (piece ^ pair % 2 * 64) + pair / 2 * 128, queries.data[t][pair]);
    }
  }
}

// sums += K Q^T. Each score is two chains of products, so that one does not wait for the other.
template <typename C>
__device__ __forceinline__ void add_key_products(const Rows<C>& tile, const Queries<C>& queries,
                                                 int32_t lane, float (&sums)[C::kHeadTiles][2][4]) {
  const int32_t row = lane % 16;  // matrices: tokens 0 to 7, 8 to 15, then the next 8 channels
  const uint32_t keys = shared_address(tile[row]);
  const int32_t piece = (lane / 16 ^ row % 8) * 16;
#pragma unroll
  for (int step = 0; step < C::kSteps; ++step) {
    uint32_t k[4];
    load_matrices<false>(keys + (piece ^ step % 4 * 32) + step / 4 * 128, k);
#pragma unroll
    for (int t = 0; t < C::kHeadTiles; ++t) {
      const auto& q = queries.data[t][step / 2];
      multiply(sums[t][step % 2], k[0], k[1], k[2], k[3], q[step % 2 * 2], q[step % 2 * 2 + 1]);
    }
  }
}

// scores = scale * K Q^T of tile `i`, -inf where a token is not visible.
template <typename C>
__device__ __forceinline__ void multiply_keys(int i, const DecodeParams& p, const KeyTile<C>& tile,
                                              const Queries<C>& queries, int32_t visible,
                                              int32_t lane, Scores<C>& scores) {
  float sums[C::kHeadTiles][2][4] = {};
  if constexpr (C::kCodedKeys) {
    add_products_of_codes<C>(p.codec, tile, queries, lane, sums);
  } else {
    add_key_products<C>(tile, queries, lane, sums);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t token = lane / 4 + half * 8;
#pragma unroll
    for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
      for (int head = 0; head < 2; ++head) {
        const int e = 2 * half + head;
        float sum = __fadd_rn(sums[t][0][e], sums[t][1][e]);
        if constexpr (C::kCodedKeys) sum = score_of_codes(p.codec, sum, tile.scales[token]);
        scores.data[t][i][e] = token < visible ? __fmul_rn(sum, p.scale) : -INFINITY;
      }
    }
  }
}

// Turns the scores of tile `i` into weights and updates max, sum and acc. kIsFirst: there is no
// earlier tile, so nothing is rescaled.
template <typename C, bool kIsFirst>
__device__ __forceinline__ void update_softmax(int i, Scores<C>& scores, Partial<C>& partial) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      float& low = scores.data[t][i][head];  // tokens g and g + 8
      float& high = scores.data[t][i][2 + head];
      float max = fmaxf(low, high);
      if (!kIsFirst) max = fmaxf(partial.max[t][head], max);
#pragma unroll
      for (int step = 4; step < kWarpThreads; step *= 2) {
        max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, step));
      }
      const float reference = reference_of(max);
      const float before = partial.max[t][head];
      low = exp_of_difference(low, reference);
      high = exp_of_difference(high, reference);
      partial.max[t][head] = max;
      float& sum = partial.sum[t][head];
      if (kIsFirst) {
        sum = __fadd_rn(low, high);
        continue;
      }
      const float keep = exp_of_difference(before, reference);
      sum = __fmaf_rn(sum, keep, __fadd_rn(low, high));
#pragma unroll
      for (int m = 0; m < C::kSteps; ++m) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          float& acc = partial.acc[t][m][2 * b + head];
          acc = __fmul_rn(acc, keep);
        }
      }
    }
  }
}

// acc += V^T P^T, with P^T as right operands.
template <typename C>
__device__ __forceinline__ void add_value_products(const Rows<C>& tile,
                                                   const uint32_t (&weights)[C::kHeadTiles][2],
                                                   int32_t lane, Partial<C>& partial) {
  const int32_t row = lane % 8 + lane / 16 * 8;  // matrices: 8 channels, the next 8, then tokens 8
  const uint32_t values = shared_address(tile[row]);  // to 15
  const int32_t piece = (lane / 8 % 2 ^ row % 8) * 16;
#pragma unroll
  for (int m = 0; m < C::kSteps; ++m) {
    uint32_t v[4];
    load_matrices<true>(values + (piece ^ m % 4 * 32) + m / 4 * 128, v);
#pragma unroll
    for (int t = 0; t < C::kHeadTiles; ++t) {
      multiply(partial.acc[t][m], v[0], v[1], v[2], v[3], weights[t][0], weights[t][1]);
    }
  }
}

// acc += V^T P^T of tile `i`.
template <typename C>
__device__ __forceinline__ void multiply_values(int i, const DecodeParams& p,
                                                const ValueTile<C>& tile, int32_t visible,
                                                int32_t lane, const Scores<C>& weights,
                                                Partial<C>& partial) {
  uint32_t operands[C::kHeadTiles][2];
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const float(&weight)[4] = weights.data[t][i];
    operands[t][0] = to_bf16_transposed(weight[0], weight[1]);
    operands[t][1] = to_bf16_transposed(weight[2], weight[3]);
  }
  if constexpr (C::kCodedValues) {
    scale_weights<C>(p.codec, tile, visible, lane, operands);
    add_values_of_codes<C>(p.codec, tile, operands, lane, partial);
  } else {
    add_value_products<C>(tile, operands, lane, partial);
  }
}

// Calls fn(number, index) for every number of the partial, in the order in which open windows are
// stored.
template <typename C, typename Fn>
__device__ __forceinline__ void for_each_number(Partial<C>& partial, Fn fn) {
  int place = 0;
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      fn(partial.max[t][head], place++);
      fn(partial.sum[t][head], place++);
    }
#pragma unroll
    for (int m = 0; m < C::kSteps; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) fn(partial.acc[t][m][e], place++);
    }
  }
}

// Sets the empty state, or the state in which the previous part of the list left this strip.
template <typename C>
__device__ __forceinline__ void begin(const float* resumed_strip, bool resumes,
                                      Partial<C>& partial) {
  for_each_number(partial, [](float& number, int) { number = 0.0f; });
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) partial.max[t][0] = partial.max[t][1] = -INFINITY;
  if (!resumes) return;
  for_each_number(partial,
                  [&](float& number, int place) { number = resumed_strip[place * kWarpThreads]; });
}

// Scores of the strip's visible tiles. REQUIRES: the copy of its keys has ended.
template <typename C>
__device__ __forceinline__ void score_strip(const DecodeParams& p, const Strip& strip, int32_t lane,
                                            const StripBuffers<C>& buffers,
                                            const Queries<C>& queries, Scores<C>& scores) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (strip.visible[i] > 0) {
      multiply_keys<C>(i, p, buffers.keys[i], queries, strip.visible[i], lane, scores);
    }
  }
}

// Softmax and P V tile by tile, so that a list's cut between two tiles changes nothing.
template <typename C>
__device__ __forceinline__ void attend_strip(const DecodeParams& p, const Strip& strip,
                                             int32_t lane, const StripBuffers<C>& buffers,
                                             Scores<C>& scores, Partial<C>& partial) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (strip.visible[i] == 0) continue;
    if (!C::kListed && i == 0) {
      update_softmax<C, true>(i, scores, partial);
    } else {
      update_softmax<C, false>(i, scores, partial);
    }
    multiply_values<C>(i, p, buffers.values[i], strip.visible[i], lane, scores, partial);
  }
}

// Waits for the copies of queries and of a strip's keys, after which `kLater` groups of copies were
// started, and loads the queries.
template <typename C, int kLater>
__device__ __forceinline__ void wait_for_queries(const WarpBuffers<C>& buffers, int32_t lane,
                                                 Queries<C>& queries) {
  wait_for_copies_but<kLater>();
  __syncwarp();
  if constexpr (C::kCodedKeys) {
    load_queries_of_codes<C>(buffers.queries, lane, queries);
  } else {
    load_queries(buffers.queries, lane, queries);
  }
}

// Waits for the values of a strip, after which those of another may have been started.
template <typename C>
__device__ __forceinline__ void wait_for_values(bool is_last) {
  if (C::kStripsOfWarp == 2 && !is_last) {
    wait_for_copies_but<2>();
  } else {
    wait_for_copies_but<0>();
  }
  __syncwarp();
}

// Computes a strip whose keys are there. `is_last`: no copies were started after its values.
template <typename C>
__device__ __forceinline__ void compute_strip(const DecodeParams& p, const Strip& strip,
                                              const Queries<C>& queries, const float* resumed_strip,
                                              bool resumes, int32_t lane,
                                              const StripBuffers<C>& buffers, bool is_last,
                                              Partial<C>& partial) {
  Scores<C> scores;
  score_strip(p, strip, lane, buffers, queries, scores);
  begin(resumed_strip, C::kListed && resumes, partial);
  wait_for_values<C>(is_last);
  attend_strip(p, strip, lane, buffers, scores, partial);
}

// The sum over the 8 lanes that share a head, the same bits in each of them.
__device__ __forceinline__ float sum_of_tokens(float sum) {
#pragma unroll
  for (int step = 4; step < kWarpThreads; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, step));
  }
  return sum;
}

// Writes the strip's result to shared memory for the whole block: rows of kRowFloats at `accs`.
template <typename C>
__device__ __forceinline__ void store_strip(int32_t num_heads, int32_t lane,
                                            const Partial<C>& partial, float* accs,
                                            float2 (&max_sums)[C::kHeads]) {
  __syncwarp();  // the other lanes are done with their values
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      const float sum = sum_of_tokens(partial.sum[t][head]);
      const int32_t column = t * kHeadsPerTile + lane % 4 * 2 + head;
      if (column >= num_heads) continue;
      if (lane < 4) max_sums[column] = {partial.max[t][head], sum};
      float* acc = accs + column * C::kRowFloats;
#pragma unroll
      for (int m = 0; m < C::kSteps; ++m) {
        const float low = partial.acc[t][m][head];
        const float high = partial.acc[t][m][2 + head];
        if constexpr (C::kCodedValues) {
          *reinterpret_cast<float2*>(acc + 16 * m + lane / 4 * 2) = {low, high};
        } else {
          acc[16 * m + lane / 4] = low;
          acc[16 * m + 8 + lane / 4] = high;
        }
      }
    }
  }
}

}  // namespace sluice::cuda::decode
