// Decode attention, first phase: a warp works out one window of one sequence and KV head.
//
// Used by attention_decode.cc for head_dim 64 and 128. Bound: bytes of K and V over HBM bandwidth.
// A warp needs no other: it loads K and V from memory into the registers where the tensor cores
// want them, two tiles of 16 tokens (four at head_dim 64) at a time, so there is no shared memory
// and no barrier; 8 warps ask for up to 128 KiB per multiprocessor. One H200, 2026-11-21: 83 to
// 101 % of the rate of a device-to-device copy from 128K tokens of KV on, 34 to 36 % at 8K tokens
// (docs/kernels/cuda_attention.md).
//
// Both products have tokens (or channels) in the 16 rows and query heads in the 8 columns of
// mma.m16n8k16, because 1 to 8 heads share K and V. Which channel a register holds is free as long
// as both operands agree, and so is which channel of the output a row is; both are chosen so that
// loads and stores are 16 bytes wide:
//   scores  S^T = K Q^T: lane (g = lane / 4, c = lane % 4) loads channels 32 i + 8 c + (0..7) of
//           tokens g and g + 8: two k-steps of the left operand.
//   output  O^T = V^T P^T: lane (g, c) loads channels 64 j + 8 g + (0..7) of tokens 2 c, 2 c + 1,
//           2 c + 8, 2 c + 9; pairs of tokens become pairs of a register by a byte permutation.
//   P^T comes out of the first product with tokens in rows and must be turned: movmatrix does it.
#include "ops/cuda/attention_decode_kernels.h"
#include "ops/cuda/attention_decode_window.cuh"
#include "ops/cuda/common_launch.cuh"

namespace sluice::cuda {
namespace {

constexpr int kHeadsPerTile = 8;  // columns of a product

// kHeadTiles * 8 query heads per warp; kStepTiles tiles of tokens per step.
template <int kHeadDimValue, int kHeadTilesValue, int kStepTilesValue>
struct Config {
  static constexpr int kHeadDim = kHeadDimValue;
  static constexpr int kHeadTiles = kHeadTilesValue;
  static constexpr int kStepTiles = kStepTilesValue;
  static constexpr int kKeyLoads = kHeadDim / 32;    // of 16 bytes, per lane and token
  static constexpr int kValueLoads = kHeadDim / 64;  // the same
};

// Registers of one lane.
template <typename C>
struct Keys {
  uint4 data[C::kStepTiles][2][C::kKeyLoads];
};
template <typename C>
struct Values {
  uint4 data[C::kStepTiles][4][C::kValueLoads];
};
template <typename C>
struct Queries {
  uint4 data[C::kHeadTiles][C::kKeyLoads];
};
// Scores of a step, then its weights: [head tile][tile][2 * token half + head], token g + 8 * half,
// head 2 c + head.
template <typename C>
struct Scores {
  float data[C::kHeadTiles][C::kStepTiles][4];
};
// What the window came to so far: heads 2 c and 2 c + 1 of each head tile. `sum` is this lane's
// part. acc[.][4 * j + w][2 * b + head] is channel 64 j + 8 g + 2 w + b.
template <typename C>
struct Partial {
  float max[C::kHeadTiles][2];
  float sum[C::kHeadTiles][2];
  float acc[C::kHeadTiles][C::kHeadDim / 16][4];
};

template <typename C>
constexpr int kNumbersOf = sizeof(Partial<C>) / sizeof(float);

// Tiles that are loaded together; `visible` tokens of each are seen, from its first.
template <typename C>
struct Step {
  const uint16_t* keys[C::kStepTiles];
  int32_t visible[C::kStepTiles];
  bool is_whole;
};

// KV is read once: it need not stay in the L1 cache.
__device__ __forceinline__ uint4 load_once(const uint16_t* source) {
  uint4 data;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "l"(source));
  return data;
}

// d += a b: a 16x16 and b 16x8 bf16, d 16x8 f32.
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Rounds two numbers and turns the 8x8 matrix whose rows are spread over the lanes.
__device__ __forceinline__ uint32_t rounded_and_turned(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(turned)
      : "r"(*reinterpret_cast<const uint32_t*>(&pair)));
  return turned;
}

// Takes the next tiles of the window out of `tiles`. REQUIRES: there are some.
template <typename C>
__device__ __forceinline__ Step<C> take_step(const DecodeParams& p, const DecodeWindow& window,
                                             int32_t kv_head, uint32_t& tiles) {
  constexpr uint32_t kMask = (1u << C::kStepTiles) - 1;
  Step<C> step;
  const int32_t first_tile = (__ffs(tiles) - 1) / C::kStepTiles * C::kStepTiles;
  const uint32_t present = tiles >> first_tile & kMask;
  tiles &= ~(kMask << first_tile);
  step.is_whole = true;
#pragma unroll
  for (int i = 0; i < C::kStepTiles; ++i) {
    const int32_t tile = first_tile + i;
    const bool is_present = (present >> i & 1u) != 0;
    const int32_t left = window.kv_end - (window.begin + tile * kTileTokens);
    step.visible[i] = is_present ? min(left, kTileTokens) : 0;
    step.is_whole = step.is_whole && step.visible[i] == kTileTokens;
    step.keys[i] = is_present ? tile_keys(p, window, kv_head, tile) : nullptr;
  }
  return step;
}

// Reads nothing of tokens that are not visible: they may be NaN, and 0 * NaN is NaN.
template <typename C, bool kIsWhole>
__device__ __forceinline__ void load_keys(const Step<C>& step, int32_t lane, Keys<C>& keys) {
#pragma unroll
  for (int i = 0; i < C::kStepTiles; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t token = lane / 4 + 8 * half;
      const uint16_t* source = step.keys[i] + token * C::kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int j = 0; j < C::kKeyLoads; ++j) {
        const bool is_visible = kIsWhole || token < step.visible[i];
        keys.data[i][half][j] = is_visible ? load_once(source + 32 * j) : uint4{};
      }
    }
  }
}

template <typename C, bool kIsWhole>
__device__ __forceinline__ void load_values(const Step<C>& step, int64_t values_offset,
                                            int32_t lane, Values<C>& values) {
#pragma unroll
  for (int i = 0; i < C::kStepTiles; ++i) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int32_t token = lane % 4 * 2 + (t & 1) + (t >> 1) * 8;
      const uint16_t* source = step.keys[i] + values_offset + token * C::kHeadDim + lane / 4 * 8;
#pragma unroll
      for (int j = 0; j < C::kValueLoads; ++j) {
        const bool is_visible = kIsWhole || token < step.visible[i];
        values.data[i][t][j] = is_visible ? load_once(source + 64 * j) : uint4{};
      }
    }
  }
}

template <typename C>
__device__ __forceinline__ void load_queries(const DecodeParams& p, int64_t row, int32_t first_head,
                                             int32_t num_heads, int32_t lane, Queries<C>& queries) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const int32_t head = t * kHeadsPerTile + lane / 4;
    const uint16_t* source =
        p.q + (row * p.num_q_heads + first_head + head) * C::kHeadDim + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < C::kKeyLoads; ++j) {
      queries.data[t][j] =
          head < num_heads ? *reinterpret_cast<const uint4*>(source + 32 * j) : uint4{};
    }
  }
}

// scores = scale * K Q^T, -inf where a token is not visible. Each score is two chains of products,
// so that one does not wait for the other.
template <typename C>
__device__ __forceinline__ void multiply_keys(const Keys<C>& keys, const Queries<C>& queries,
                                              const Step<C>& step, float scale, int32_t lane,
                                              Scores<C>& scores) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
    for (int i = 0; i < C::kStepTiles; ++i) {
      float even[4] = {};
      float odd[4] = {};
#pragma unroll
      for (int j = 0; j < C::kKeyLoads; ++j) {
        const uint4 low = keys.data[i][0][j];
        const uint4 high = keys.data[i][1][j];
        const uint4 q = queries.data[t][j];
        multiply(even, low.x, high.x, low.y, high.y, q.x, q.y);
        multiply(odd, low.z, high.z, low.w, high.w, q.z, q.w);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool is_visible = lane / 4 + e / 2 * 8 < step.visible[i];
        const float score = __fmul_rn(__fadd_rn(even[e], odd[e]), scale);
        scores.data[t][i][e] = is_visible ? score : -INFINITY;
      }
    }
  }
}

// The scores of tile `i` become weights; max, sum and acc follow.
template <typename C>
__device__ __forceinline__ void update_softmax(int i, Scores<C>& scores, Partial<C>& partial) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      float& low = scores.data[t][i][head];  // tokens g and g + 8
      float& high = scores.data[t][i][2 + head];
      float max = fmaxf(partial.max[t][head], fmaxf(low, high));
#pragma unroll
      for (int step = 4; step < kWarpThreads; step *= 2) {
        max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, step));
      }
      const float reference = reference_of(max);
      const float keep = exp_of_difference(partial.max[t][head], reference);
      low = exp_of_difference(low, reference);
      high = exp_of_difference(high, reference);
      partial.max[t][head] = max;
      partial.sum[t][head] = __fmaf_rn(partial.sum[t][head], keep, __fadd_rn(low, high));
#pragma unroll
      for (int m = 0; m < C::kHeadDim / 16; ++m) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          float& acc = partial.acc[t][m][2 * b + head];
          acc = __fmul_rn(acc, keep);
        }
      }
    }
  }
}

__device__ __forceinline__ uint32_t word(const uint4& data, int w) {
  return w == 0 ? data.x : w == 1 ? data.y : w == 2 ? data.z : data.w;
}

// acc += V^T P^T of tile `i`.
template <typename C>
__device__ __forceinline__ void multiply_values(int i, const Values<C>& values,
                                                const Scores<C>& weights, Partial<C>& partial) {
  uint32_t p[C::kHeadTiles][2];
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
    const float(&weight)[4] = weights.data[t][i];
    p[t][0] = rounded_and_turned(weight[0], weight[1]);
    p[t][1] = rounded_and_turned(weight[2], weight[3]);
  }
#pragma unroll
  for (int j = 0; j < C::kValueLoads; ++j) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t v[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) v[t] = word(values.data[i][t][j], w);
      const uint32_t a0 = __byte_perm(v[0], v[1], 0x5410);
      const uint32_t a1 = __byte_perm(v[0], v[1], 0x7632);
      const uint32_t a2 = __byte_perm(v[2], v[3], 0x5410);
      const uint32_t a3 = __byte_perm(v[2], v[3], 0x7632);
#pragma unroll
      for (int t = 0; t < C::kHeadTiles; ++t) {
        multiply(partial.acc[t][4 * j + w], a0, a1, a2, a3, p[t][0], p[t][1]);
      }
    }
  }
}

// Calls fn(number, its place) for every number of the partial.
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
    for (int m = 0; m < C::kHeadDim / 16; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) fn(partial.acc[t][m][e], place++);
    }
  }
}

// The empty state, or what the previous part of the list left of this window.
template <typename C>
__device__ __forceinline__ void begin(const float* resumed_window, bool resumes,
                                      Partial<C>& partial) {
  for_each_number(partial, [](float& number, int) { number = 0.0f; });
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) partial.max[t][0] = partial.max[t][1] = -INFINITY;
  if (!resumes) return;
  for_each_number(partial,
                  [&](float& number, int place) { number = resumed_window[place * kWarpThreads]; });
}

// The walk over a window that shows at least one token.
template <typename C>
__device__ __forceinline__ void walk(const DecodeParams& p, const DecodeWindow& window,
                                     int32_t kv_head, const Queries<C>& queries, int32_t lane,
                                     Partial<C>& partial) {
  const int64_t values_offset = static_cast<int64_t>(p.block_tokens) * C::kHeadDim;
  uint32_t tiles = window.tiles;
  Keys<C> keys;
  Values<C> values;
  const auto fetch_keys = [&](const Step<C>& step) {
    if (step.is_whole) {
      load_keys<C, true>(step, lane, keys);
    } else {
      load_keys<C, false>(step, lane, keys);
    }
  };
  const auto fetch_values = [&](const Step<C>& step) {
    if (step.is_whole) {
      load_values<C, true>(step, values_offset, lane, values);
    } else {
      load_values<C, false>(step, values_offset, lane, values);
    }
  };
  Step<C> step = take_step<C>(p, window, kv_head, tiles);
  fetch_keys(step);
  fetch_values(step);
  while (true) {
    Scores<C> scores;
    multiply_keys(keys, queries, step, p.scale, lane, scores);
    const Step<C> current = step;
    const bool is_last = tiles == 0;
    if (!is_last) {
      step = take_step<C>(p, window, kv_head, tiles);
      fetch_keys(step);
    }
    // Tile by tile, so that it makes no difference which tiles share a step.
#pragma unroll
    for (int i = 0; i < C::kStepTiles; ++i) {
      if (current.visible[i] == 0) continue;
      update_softmax(i, scores, partial);
      multiply_values(i, values, scores, partial);
    }
    if (is_last) return;
    fetch_values(step);
  }
}

template <typename C>
__device__ __forceinline__ void store(const DecodeParams& p, int32_t first_head, int32_t num_heads,
                                      int32_t lane, const Partial<C>& partial) {
#pragma unroll
  for (int t = 0; t < C::kHeadTiles; ++t) {
#pragma unroll
    for (int head = 0; head < 2; ++head) {
      float sum = partial.sum[t][head];
#pragma unroll
      for (int step = 4; step < kWarpThreads; step *= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(kFullWarp, sum, step));
      }
      const int32_t column = t * kHeadsPerTile + lane % 4 * 2 + head;
      if (column >= num_heads) continue;
      const int64_t index = partial_index(p, blockIdx.z, first_head + column, blockIdx.x);
      if (lane < 4) p.partial_max_sum[index] = {partial.max[t][head], sum};
      float* acc = p.partial_acc + index * C::kHeadDim + lane / 4 * 8;
#pragma unroll
      for (int j = 0; j < C::kValueLoads; ++j) {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
          const auto& first = partial.acc[t][4 * j + 2 * w];
          const auto& second = partial.acc[t][4 * j + 2 * w + 1];
          *reinterpret_cast<float4*>(acc + 64 * j + 4 * w) = {first[head], first[2 + head],
                                                              second[head], second[2 + head]};
        }
      }
    }
  }
}

// grid: windows of the round x (KV head, tiles of its query heads) x sequences of the round.
template <typename C>
__global__ void __launch_bounds__(kWarpThreads, 8) decode_windows(const DecodeParams p) {
  let_next_kernel_start();
  wait_for_earlier_work();
  constexpr int32_t kHeads = C::kHeadTiles * kHeadsPerTile;
  const int32_t lane = threadIdx.x;
  const int32_t seq = p.first_seq + blockIdx.z;
  const int32_t index = p.first_window + blockIdx.x;
  const int32_t block = block_of_window(p, seq, index);
  const DecodeRow row = decode_row(p, seq);
  if (index >= row.num_windows) return;
  const int32_t parts = (p.group + kHeads - 1) / kHeads;
  const int32_t kv_head = blockIdx.y / parts;
  const int32_t head_in_group = blockIdx.y % parts * kHeads;
  const int32_t first_head = kv_head * p.group + head_in_group;
  const int32_t num_heads = min(p.group - head_in_group, kHeads);
  const DecodeWindow window = make_window(p, row, seq, kv_head, index, block, lane);
  // Nothing comes of a window that shows nothing, and not yet of one that the next part goes on.
  if ((window.tiles == 0 || window.is_open) && lane < num_heads) {
    p.partial_max_sum[partial_index(p, blockIdx.z, first_head + lane, blockIdx.x)] =
        nothing_visible();
  }
  if (window.tiles == 0) return;
  Queries<C> queries;
  load_queries(p, row.row, first_head, num_heads, lane, queries);
  const int32_t first_number = blockIdx.y * kNumbersOf<C> * kWarpThreads + lane;
  Partial<C> partial;
  begin(p.resumed_windows + first_number, window.resumes, partial);
  walk(p, window, kv_head, queries, lane, partial);
  if (window.is_open) {
    for_each_number(partial, [&](float& number, int place) {
      p.open_windows[first_number + place * kWarpThreads] = number;
    });
  } else {
    store(p, first_head, num_heads, lane, partial);
  }
}

template <typename C>
void launch(CudaStream& stream, const DecodeParams& p) {
  constexpr int32_t kHeads = C::kHeadTiles * kHeadsPerTile;
  const int32_t parts = (p.group + kHeads - 1) / kHeads;
  const dim3 grid(static_cast<unsigned>(p.num_windows),
                  static_cast<unsigned>(p.num_kv_heads * parts), static_cast<unsigned>(p.num_seqs));
  launch_early(stream, decode_windows<C>, {.grid = grid, .block = dim3(kWarpThreads)}, p);
}

}  // namespace

void launch_decode_windows(CudaStream& stream, const DecodeParams& p) {
  const bool is_wide = p.head_dim == 128;
  if (p.group <= kHeadsPerTile) {
    return is_wide ? launch<Config<128, 1, 2>>(stream, p) : launch<Config<64, 1, 4>>(stream, p);
  }
  return is_wide ? launch<Config<128, 2, 1>>(stream, p) : launch<Config<64, 2, 2>>(stream, p);
}

}  // namespace sluice::cuda
