// Decode attention, first phase: a block computes a window, or half of one, of one sequence and KV
// head.
//
// Used by attention/decode/decode.cc for head_dim 64, 128 and 256 (strip_wide.cuh), unless wave.cu
// (few sequences of some 2K to 16K tokens) or listed.cu (sparse lists) takes the call. Bound: bytes
// of K and V over HBM bandwidth; latency with little KV. Tile: a warp has a strip of 32 tokens
// (attention/decode/strip.cuh), so half a window of 256 is 4 warps that start all copies at once
// and wait for memory once. K and V are copied to shared memory asynchronously: each load into
// registers would occupy a line of the L1 cache until it arrives. Three blocks on a multiprocessor
// have 192 KiB in flight. Share: 90 to 100 % of the rate of a device-to-device copy from 128K
// tokens of KV on, 75 to 85 % at 32K (docs/kernels/cuda_attention.md).
#include <algorithm>

#include "device/cuda/early_launch.cuh"
#include "ops/cuda/attention/decode/block.cuh"
#include "ops/cuda/attention/decode/kernels.h"
#include "ops/cuda/attention/decode/strip_wide.cuh"

namespace sluice::cuda {
namespace {

using namespace decode;  // strips

// Shared memory of a block besides the buffers of its warps: (max, sum) of strips and of a first
// half.
template <typename C>
struct Strips {
  // Of each warp's strip, and of its strip of the second half.
  float2 max_sums[kMaxWarps * C::kStripsOfWarp][C::kHeads];
  float2 first_half[C::kHeads];  // of the window's first half, when it has been added up
};

// The part of a window that a block computes at a time.
struct Half {
  int32_t window;  // of the round
  int32_t index;   // 0 or 1
  int32_t record;
  bool is_added;  // to the first half, which this block has computed before
};

// The channels of the first half that this thread adds the second half to.
template <typename C>
struct FirstHalf {
  float4 acc[C::kHeads * C::kHeadDim / 4 / (kMaxWarps * kWarpThreads)];
};

// Adds the strips up in order of position and writes the result of the window, or of the half. A
// thread has four channels at a time, since computing the weights takes longer than adding.
template <typename C>
__device__ __forceinline__ void store_half(const DecodeParams& p, const Place& place,
                                           const Half& half, int32_t thread, Strips<C>& strips,
                                           WarpBuffers<C>* buffers, FirstHalf<C>& first) {
  constexpr int32_t kQuads = C::kHeadDim / 4;
  constexpr int32_t kAtOnce = sizeof(first.acc) / sizeof(float4);
  const auto num_threads = static_cast<int32_t>(blockDim.x);
  const int32_t num_strips = num_threads / kWarpThreads;
  const int32_t count = place.num_heads * kQuads;
  // One iteration when a window has two halves: first.acc keeps the channels of one only.
  for (int32_t begin = thread; begin < count; begin += kAtOnce * num_threads) {
#pragma unroll
    for (int32_t n = 0; n < kAtOnce; ++n) {
      const int32_t i = begin + n * num_threads;
      if (i >= count) break;
      const int32_t head = i / kQuads;
      const int32_t channel = i % kQuads * 4;
      float2 max_sum;
      float4 acc =
          sum_of_strips<C>(strips.max_sums, &buffers[0].acc()[head][channel],
                           sizeof(WarpBuffers<C>) / sizeof(float), head, num_strips, max_sum);
      if (half.is_added) {
        HalfWeights weights;
        max_sum = sum_of_halves(strips.first_half[head], max_sum, weights);
        acc = {sum_of_halves(first.acc[n].x, acc.x, weights),
               sum_of_halves(first.acc[n].y, acc.y, weights),
               sum_of_halves(first.acc[n].z, acc.z, weights),
               sum_of_halves(first.acc[n].w, acc.w, weights)};
      } else if (channel == 0) {
        strips.first_half[head] = max_sum;
      }
      first.acc[n] = acc;
      const int64_t index =
          partial_index(p, blockIdx.z, place.first_head + head, half.window) + half.record;
      *reinterpret_cast<float4*>(p.partial_acc + index * C::kHeadDim + channel) = acc;
      if (channel == 0) p.partial_max_sum[index] = max_sum;
    }
  }
}

// Writes that nothing of a half is visible, unless the first half has been written to this record.
template <typename C>
__device__ __forceinline__ void store_nothing(const DecodeParams& p, const Place& place,
                                              const Half& half, int32_t thread, Strips<C>& strips) {
  if (half.is_added || thread >= place.num_heads) return;
  strips.first_half[thread] = nothing_visible();
  const int64_t index = partial_index(p, blockIdx.z, place.first_head + thread, half.window);
  p.partial_max_sum[index + half.record] = nothing_visible();
}

// Computes half a window. All threads of the block call it.
template <typename C>
__device__ __forceinline__ void compute_half(const DecodeParams& p, const DecodeWindow& window,
                                             const uint16_t* queries, const Place& place,
                                             const Half& half, int32_t thread, Strips<C>& strips,
                                             WarpBuffers<C>* buffers, FirstHalf<C>& first) {
  const int32_t lane = thread % kWarpThreads;
  const int32_t warp = thread / kWarpThreads;
  // A half without a listed tile has no result, and a window that the next part continues has none
  // yet.
  const bool is_empty = (window.tiles >> half.index * kHalfTiles & ((1u << kHalfTiles) - 1)) == 0;
  if (is_empty || (C::kListed && window.is_open)) store_nothing(p, place, half, thread, strips);
  if (is_empty && !(C::kListed && (window.is_open || window.resumes))) return;
  const int32_t strip_index = half.index * kMaxWarps + warp;
  const Strip strip = make_strip<C>(p, window, place.kv_head, strip_index);
  const int64_t values_offset = offset_of_values<C::kCodes>(p, C::kHeadDim);
  const int32_t first_number =
      (blockIdx.y * 2 * kMaxWarps + strip_index) * kNumbersOf<C> * kWarpThreads + lane;
  const float* resumed = p.resumed_windows + first_number;
  Partial<C> partial;
  if constexpr (C::kIsWide) {
    copy_wide_keys<C>(strip, lane, buffers[warp]);
    compute_wide_strip<C>(p, strip, values_offset, queries, place.num_heads, resumed,
                          window.resumes, lane, buffers[warp], partial);
  } else {
    copy_strip(strip, values_offset, queries, place.num_heads, lane, buffers[warp]);
    Queries<C> operands;
    wait_for_queries<C, 1>(buffers[warp], lane, operands);
    compute_strip(p, strip, operands, resumed, window.resumes, lane, buffers[warp].strips[0], true,
                  partial);
  }
  // The cut of a gathered list: each warp's registers are kept for the next part.
  if (C::kListed && window.is_open) {
    for_each_number(partial, [&](float& number, int place_of_number) {
      p.open_windows[first_number + place_of_number * kWarpThreads] = number;
    });
    return;
  }
  store_strip(place.num_heads, lane, partial, &buffers[warp].acc()[0][0], strips.max_sums[warp]);
  __syncthreads();
  store_half(p, place, half, thread, strips, buffers, first);
}

// Computes both halves of a window, whose copies start at once: what both need, and the sum of
// their strips, is computed once. All threads of the block call it.
template <typename C>
__device__ __forceinline__ void compute_both_halves(const DecodeParams& p,
                                                    const DecodeWindow& window,
                                                    const uint16_t* queries, const Place& place,
                                                    int32_t window_of_round, int32_t thread,
                                                    Strips<C>& strips, WarpBuffers<C>* buffers) {
  const int32_t lane = thread % kWarpThreads;
  const int32_t warp = thread / kWarpThreads;
  WarpBuffers<C>& own = buffers[warp];
  const int64_t values_offset = offset_of_values<C::kCodes>(p, C::kHeadDim);
  const auto strip_of = [&](int32_t half) {
    return make_strip<C>(p, window, place.kv_head, half * kMaxWarps + warp);
  };
  copy_strip(strip_of(0), values_offset, queries, place.num_heads, lane, own);
  copy_keys(strip_of(1), lane, own.strips[1]);
  copy_values(strip_of(1), values_offset, lane, own.strips[1]);
  Queries<C> operands;
  wait_for_queries<C, 3>(own, lane, operands);
#pragma unroll 1  // two bodies would be 50 KB of instructions
  for (int32_t half = 0; half < 2; ++half) {
    Partial<C> partial;
    compute_strip(p, strip_of(half), operands, nullptr, false, lane, own.strips[half], half == 1,
                  partial);
    store_strip(place.num_heads, lane, partial, &own.acc(half)[0][0],
                strips.max_sums[half * kMaxWarps + warp]);
    wait_for_copies_but<1>();  // the second half's keys
    __syncwarp();
  }
  __syncthreads();
  store_window<C>(p, static_cast<int32_t>(blockIdx.z), place.first_head, place.num_heads,
                  window_of_round, strips.max_sums,
                  {&buffers[0].acc()[0][0], sizeof(WarpBuffers<C>) / sizeof(float),
                   sizeof(StripBuffers<C>) / sizeof(float)});
}

// Computes a window of the round, or the half of it that is a record. Returns false if the row has
// no such window.
template <typename C>
__device__ __forceinline__ bool compute_window(const DecodeParams& p, const Place& place, Half half,
                                               Strips<C>& strips, WarpBuffers<C>* buffers) {
  // Values that depend on the thread are computed again for each half: kept in registers they would
  // spill.
  const auto this_thread = [] { return hidden(static_cast<int32_t>(threadIdx.x)); };
  const int32_t index = p.first_window + half.window;
  const int32_t block = block_of_window<C::kListed>(p, place.seq, index);
  const DecodeRow row = decode_row(p, place.seq);
  wait_for_earlier_work();  // tables may be read before, queries and KV may not
  if (index >= row.num_windows) return false;
  const DecodeWindow window = make_window<C::kListed, C::kCodes>(
      p, row, place.seq, place.kv_head, index, block, this_thread() % kWarpThreads);
  const uint16_t* queries = queries_of_window(p, row, window.begin) +
                            (row.row * p.num_q_heads + place.first_head) * C::kHeadDim;
  // Lists leave most windows without a tile.
  const bool has_two_halves =
      p.records == 1 && p.window_tokens > kHalfTokens && !(C::kListed && window.tiles == 0);
  if constexpr (C::kStripsOfWarp == 2) {
    if (has_two_halves) {
      compute_both_halves(p, window, queries, place, half.window, this_thread(), strips, buffers);
      return true;
    }
  }
  FirstHalf<C> first;
  while (true) {
    compute_half(p, window, queries, place, half, this_thread(), strips, buffers, first);
    if (!has_two_halves || half.is_added) return true;
    half.index = 1;
    half.is_added = true;
    __syncthreads();  // the strips are added up
  }
}

// grid: (windows of the round, or fewer blocks that take several, or halves of windows) x (KV head,
// tiles of its query heads) x sequences of the round.
template <typename C>
__global__ void __launch_bounds__(kMaxWarps* kWarpThreads, 3) decode_windows(const DecodeParams p) {
  __shared__ Strips<C> strips;
  auto* buffers = reinterpret_cast<WarpBuffers<C>*>(dynamic_shared_memory());
  const Place place = make_place<C>(p);
  let_next_kernel_start();
  // Few windows: neighbouring blocks compute the halves of one.
  if (p.records == 2) {
    Half half = {.window = static_cast<int32_t>(blockIdx.x / 2)};
    half.index = half.record = blockIdx.x % 2;
    compute_window(p, place, half, strips, buffers);
    return;
  }
  for (int32_t window = blockIdx.x; window < p.num_windows; window += gridDim.x) {
    if (!compute_window(p, place, {.window = window}, strips, buffers)) return;
    __syncthreads();  // the strips are added up
  }
}

// More blocks per multiprocessor than this, and blocks take several windows instead: enough for
// even shares, and few enough that blocks without a window cost little.
constexpr int64_t kBlocksPerMultiprocessor = 64;

template <typename C>
void launch(CudaStream& stream, const DecodeParams& p) {
  const int32_t parts = (p.group + C::kHeads - 1) / C::kHeads;
  const int64_t walks = int64_t{p.num_kv_heads} * parts * p.num_seqs;
  const int64_t most =
      kBlocksPerMultiprocessor * stream.cuda_device().properties().multiProcessorCount;
  const int64_t rounds = (walks * p.num_windows + most - 1) / most;
  const int64_t num_blocks =
      p.records == 2 ? p.num_windows * 2 : (p.num_windows + rounds - 1) / rounds;
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(p.num_kv_heads * parts),
                  static_cast<unsigned>(p.num_seqs));
  const int32_t num_warps =
      std::min((p.window_tokens + kStripTokens - 1) / kStripTokens, kMaxWarps);
  static_assert(kMaxWarps * sizeof(WarpBuffers<C>) <= kLeastSharedBytes);
  const size_t shared_bytes = num_warps * sizeof(WarpBuffers<C>);
  // At every launch, since the attribute belongs to the current device; the call is cheap.
  check_cuda(cudaFuncSetAttribute(decode_windows<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kMaxWarps * sizeof(WarpBuffers<C>)),
             "cudaFuncSetAttribute");
  launch_early(stream, decode_windows<C>,
               {.grid = grid,
                .block = dim3(static_cast<unsigned>(num_warps * kWarpThreads)),
                .shared_bytes = shared_bytes},
               p);
}

// Up to 8 query heads per KV head fill one tile of 8 columns; more take two, and more blocks. Of
// heads of 256 channels two would not fit the registers.
template <bool kListed, KvCodes kCodes>
void launch_listed(CudaStream& stream, const DecodeParams& p) {
  if (p.head_dim == 256) return launch<Config<256, 1, kListed, kCodes>>(stream, p);
  const bool is_wide = p.head_dim == 128;
  if (p.group <= kHeadsPerTile) {
    return is_wide ? launch<Config<128, 1, kListed, kCodes>>(stream, p)
                   : launch<Config<64, 1, kListed, kCodes>>(stream, p);
  }
  return is_wide ? launch<Config<128, 2, kListed, kCodes>>(stream, p)
                 : launch<Config<64, 2, kListed, kCodes>>(stream, p);
}

template <KvCodes kCodes>
void launch_element(CudaStream& stream, const DecodeParams& p) {
  p.page_ids != nullptr ? launch_listed<true, kCodes>(stream, p)
                        : launch_listed<false, kCodes>(stream, p);
}

}  // namespace

void launch_decode_windows(CudaStream& stream, const DecodeParams& p) {
  switch (p.codes) {
    case KvCodes::kNone:
      return launch_element<KvCodes::kNone>(stream, p);
    case KvCodes::kValues:
      return launch_element<KvCodes::kValues>(stream, p);
    case KvCodes::kAll:
      return launch_element<KvCodes::kAll>(stream, p);
  }
}

}  // namespace sluice::cuda
