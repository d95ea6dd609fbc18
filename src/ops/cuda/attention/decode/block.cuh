// Blocks of decode attention: which heads a block computes, and how the strips of its warps are
// added up.
//
// Used by block.cu, listed.cu and wave.cu of attention/decode. Thread rule: device
// code.
#pragma once

#include "ops/cuda/attention/decode/strip.cuh"

namespace sluice::cuda::decode {

// The sequence and heads of a block, the same for all its windows.
struct Place {
  int32_t seq;
  int32_t kv_head;
  int32_t first_head;  // and the others after it
  int32_t num_heads;
};

// Groups of more than C::kHeads query heads are split over several blocks (blockIdx.y).
template <typename C>
__device__ __forceinline__ Place make_place(const DecodeParams& p) {
  const int32_t parts = (p.group + C::kHeads - 1) / C::kHeads;
  Place place;
  place.seq = p.first_seq + blockIdx.z;
  place.kv_head = parts == 1 ? blockIdx.y : blockIdx.y / parts;
  const int32_t head_in_group = (blockIdx.y - place.kv_head * parts) * C::kHeads;
  place.first_head = place.kv_head * p.group + head_in_group;
  place.num_heads = min(p.group - head_in_group, C::kHeads);
  return place;
}

// The sum of the strips of a half, in order of position, for four channels of a head:
//   acc = sum of acc[s] * exp(max[s] - max), (max, sum) likewise in `max_sum`
// `accs` points to the first strip's channels; those of the next strip are `stride` floats further.
// Strips that show nothing are not read: their acc was not written.
template <typename C>
__device__ __forceinline__ float4 sum_of_strips(const float2 (*max_sums)[C::kHeads],
                                                const float* accs, int32_t stride, int32_t head,
                                                int32_t num_strips, float2& max_sum) {
  float2 own[kMaxWarps];
  float4 added[kMaxWarps];
  max_sum = nothing_visible();
#pragma unroll
  for (int32_t s = 0; s < kMaxWarps; ++s) {
    own[s] = s < num_strips ? max_sums[s][head] : nothing_visible();
    added[s] = {};
    if (!shows_nothing(own[s])) added[s] = *reinterpret_cast<const float4*>(accs + s * stride);
    max_sum.x = fmaxf(max_sum.x, own[s].x);
  }
  const float reference = reference_of(max_sum.x);
  float4 acc = {};
#pragma unroll
  for (int32_t s = 0; s < kMaxWarps; ++s) {
    const float weight = exp_of_difference(own[s].x, reference);
    max_sum.y = __fmaf_rn(own[s].y, weight, max_sum.y);
    acc = {__fmaf_rn(added[s].x, weight, acc.x), __fmaf_rn(added[s].y, weight, acc.y),
           __fmaf_rn(added[s].z, weight, acc.z), __fmaf_rn(added[s].w, weight, acc.w)};
  }
  return acc;
}

// Where the strips of a window have put their acc: head h of strip i of the first half is at
// accs + i * stride + h * kRowFloats, that of the second half `second` floats further.
struct StripSums {
  const float* accs;
  int32_t stride;
  int32_t second;
};

// The sum of the strips of a window: each half on its own, then both halves. All kernels add in
// this order, so a window has the same bits in each of them.
template <typename C>
__device__ __forceinline__ float4 sum_of_window(const float2 (*max_sums)[C::kHeads],
                                                const StripSums& strips, int32_t head,
                                                int32_t channel, float2& max_sum) {
  const float* accs = strips.accs + head * C::kRowFloats + channel;
  float2 first, second;
  const float4 a = sum_of_strips<C>(max_sums, accs, strips.stride, head, kMaxWarps, first);
  const float4 b = sum_of_strips<C>(max_sums + kMaxWarps, accs + strips.second, strips.stride, head,
                                    kMaxWarps, second);
  HalfWeights weights;
  max_sum = sum_of_halves(first, second, weights);
  return {sum_of_halves(a.x, b.x, weights), sum_of_halves(a.y, b.y, weights),
          sum_of_halves(a.z, b.z, weights), sum_of_halves(a.w, b.w, weights)};
}

// Adds up the strips of a window for `num_heads` heads of a row and writes the result. A thread has
// four channels at a time, since computing the weights takes longer than adding.
template <typename C>
__device__ __forceinline__ void store_window(const DecodeParams& p, int32_t round_seq,
                                             int32_t first_head, int32_t num_heads, int32_t window,
                                             const float2 (*max_sums)[C::kHeads],
                                             const StripSums& strips) {
  constexpr int32_t kQuads = C::kHeadDim / 4;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < num_heads * kQuads;
       i += static_cast<int32_t>(blockDim.x)) {
    const int32_t head = i / kQuads;
    const int32_t channel = i % kQuads * 4;
    float2 max_sum;
    const float4 acc = sum_of_window<C>(max_sums, strips, head, channel, max_sum);
    const int64_t index = partial_index(p, round_seq, first_head + head, window);
    *reinterpret_cast<float4*>(p.partial_acc + index * C::kHeadDim + channel) = acc;
    if (channel == 0) p.partial_max_sum[index] = max_sum;
  }
}

}  // namespace sluice::cuda::decode
