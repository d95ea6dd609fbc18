// Strips of decode attention for heads of 256 channels: values take the place of keys.
//
// Used by block.cu. Keys and values of a strip are 32 KiB, four warps of which leave room for one
// block on a multiprocessor; nothing would be in flight while it computes. Here the values of a
// tile are copied to where its keys were as soon as these have given their scores, so that three
// blocks have up to 192 KiB in flight. Queries come from memory into registers, since their copies
// would not fit either. The arithmetic is that of strip.cuh. Thread rule: device code, whole warps.
//
// A warp with tiles 0 and 1; a copy is a group of its own:
//   place 0   keys 0 arrive | scores 0 | values 0 arrive .......... | softmax, P V
//   place 1   keys 1 arrive ........... | scores 1 | values 1 arrive ............ | softmax, P V
// Between two lines of arrival at least one tile is on its way.
#pragma once

#include "ops/cuda/attention/decode/strip.cuh"

namespace sluice::cuda::decode {

// Starts the copies of the strip's keys, a group for each tile.
template <typename C>
__device__ __forceinline__ void copy_wide_keys(const Strip& strip, int32_t lane,
                                               WarpBuffers<C>& buffers) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (strip.visible[i] > 0) {
      copy_tile<C>(strip.keys[i], strip.visible[i], lane, buffers.tiles[i].keys);
    }
    end_of_copies();
  }
}

// Loads the queries of heads that exist, zeros for others, in the layout of Queries.
template <typename C>
__device__ __forceinline__ void load_wide_queries(const uint16_t* rows, int32_t num_heads,
                                                  int32_t lane, Queries<C>& queries) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const int32_t head = t * kHeadsPerTile + lane / 4;
    const uint16_t* from = rows + head * C::kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kHeadDim / 8; ++i) {
      uint32_t pair = 0;
      if (head < num_heads) pair = *reinterpret_cast<const uint32_t*>(from + i * 8);
      queries.data[t][i / 4][i % 4] = pair;
    }
  }
}

// Scores of all tiles, each as its keys arrive; then its values follow them.
template <typename C>
__device__ __forceinline__ void score_wide(const DecodeParams& p, const Strip& strip,
                                           int64_t values_offset, const Queries<C>& queries,
                                           int32_t lane, WarpBuffers<C>& buffers,
                                           Scores<C>& scores) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    wait_for_copies_but<kTiles - 1>();
    __syncwarp();
    if (strip.visible[i] > 0) {
      multiply_keys<C>(i, p, buffers.tiles[i].keys, queries, strip.visible[i], lane, scores);
      __syncwarp();  // all lanes have read the keys
      copy_tile<C>(strip_values<C>(strip, i, values_offset), strip.visible[i], lane,
                   buffers.tiles[i].values);
    }
    end_of_copies();
  }
}

// Softmax and P V of tile `i`, whose values have arrived.
template <typename C>
__device__ __forceinline__ void attend_wide(int i, const DecodeParams& p, const Strip& strip,
                                            int32_t lane, WarpBuffers<C>& buffers,
                                            Scores<C>& scores, Partial<C>& partial) {
  if (strip.visible[i] == 0) return;
  if (!C::kListed && i == 0) {
    update_softmax<C, true>(i, scores, partial);
  } else {
    update_softmax<C, false>(i, scores, partial);
  }
  multiply_values<C>(i, p, buffers.tiles[i].values, strip.visible[i], lane, scores, partial);
}

// Computes a strip whose copies copy_wide_keys has started.
template <typename C>
__device__ __forceinline__ void compute_wide_strip(const DecodeParams& p, const Strip& strip,
                                                   int64_t values_offset,
                                                   const uint16_t* query_rows, int32_t num_heads,
                                                   const float* resumed_strip, bool resumes,
                                                   int32_t lane, WarpBuffers<C>& buffers,
                                                   Partial<C>& partial) {
  Scores<C> scores;
  {
    Queries<C> queries;
    if constexpr (C::kCodedKeys) {
      load_wide_queries_of_codes<C>(query_rows, num_heads, lane, queries);
    } else {
      load_wide_queries<C>(query_rows, num_heads, lane, queries);
    }
    score_wide<C>(p, strip, values_offset, queries, lane, buffers, scores);
  }
  begin(resumed_strip, C::kListed && resumes, partial);
  static_assert(kTiles == 2, "a wait for each tile");
  wait_for_copies_but<1>();
  __syncwarp();
  attend_wide<C>(0, p, strip, lane, buffers, scores, partial);
  wait_for_copies_but<0>();
  __syncwarp();
  attend_wide<C>(1, p, strip, lane, buffers, scores, partial);
}

}  // namespace sluice::cuda::decode
