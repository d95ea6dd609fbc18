// The codec of skinny_ring.cuh for weights in e4m3.
//
// Codes become f16 with one instruction for two of them, and x becomes f16, too: its numbers have 8
// bits, so f16 holds them times a power of two that each row has for each 128 columns. The largest
// of these is then below 2^15; what is 2^31 times smaller loses bits, 2^-39 of the largest at most.
// The sum over 128 columns, those of a scale, is multiplied by both scales in f32 and added to
// those before. Used by e4m3_skinny.cu and by coded_pairs.cu and coded_tiles.cu of experts. Thread
// rule: device code.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {

struct E4m3Codec;

static_assert(kGroup == kScaleGroup);
// Where the scale of a number is (E4m3ScaleLayout).
struct E4m3Scales {
  const float* first;
  E4m3ScaleLayout layout;

  __device__ const float* of(int64_t row, int32_t group) const {
    return first + (row >> layout.row_shift) * layout.row_stride + group * layout.group_stride;
  }
};

inline E4m3Scales e4m3_scales_of(const PackedWeight& weight) {
  return {.first = e4m3_scales(weight),
          .layout = e4m3_scale_layout(weight.format, weight.num_rows, weight.num_cols)};
}

// What a kernel gets.
struct E4m3Call {
  SkinnyCall product;
  E4m3Scales scales;

  // With the weight that lies this many bytes on.
  __device__ E4m3Call at(int64_t offset) const {
    E4m3Call call = *this;
    call.product.weight = static_cast<const std::byte*>(product.weight) + offset;
    call.scales.first =
        reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(scales.first) + offset);
    return call;
  }
};

// What makes a row of x f16 in a group of columns: its largest number becomes one of 2^14.
struct RowScale {
  float factor;
  float inverse;  // NaN if a number is not finite

  // most: the bits of the largest magnitude in bf16.
  __device__ static RowScale of(uint32_t most) {
    const uint32_t exponent = max(most >> 7, 15u);  // biased
    return {.factor = __uint_as_float((127u + 127u + 14u - exponent) << 23),
            .inverse = __uint_as_float(exponent == 255 ? 0x7fc00000u : (exponent - 14u) << 23)};
  }
  // Two bf16 numbers.
  __device__ uint32_t apply(uint32_t pair) const {
    const __half2 value = __floats2half2_rn(__uint_as_float(pair << 16) * factor,
                                            __uint_as_float(pair & 0xffff0000u) * factor);
    return *reinterpret_cast<const uint32_t*>(&value);
  }
};

__device__ inline uint32_t magnitudes(uint32_t pair) { return pair & 0x7fff7fffu; }

// What a warp multiplies: its rows of x as f16. A single row is made by all lanes, four columns
// each, and exchanged in shared memory, since four lanes need it; of more rows each lane makes what
// it needs. Both give the same numbers.
template <bool kHigh>
struct Columns<E4m3Codec, kHigh> {
  using Exchange = Bf16x8[kRingWarps][kGroup / 8];
  static constexpr size_t kSharedBytes = sizeof(Exchange);

  const uint16_t* x;
  int32_t k;
  int32_t m;
  Lane lane;
  Bf16x8 low[4];              // in f16: eight columns each of row g, as codes lie in a Stage;
  Bf16x8 high[4];             // of row g + 8; both bf16 from load to prepare
  float low_scales[2] = {};   // of rows 2 t and 2 t + 1
  float high_scales[2] = {};  // of those from 8 on

  __device__ Columns(const SkinnyCall& call, const Lane& of_lane)
      : x(call.x), k(call.k), m(call.m), lane(of_lane) {}

  __device__ void load(int group) {
    if (has_one()) return load_one(group);
    load_own(group, lane.row(), low);
    if constexpr (kHigh) load_own(group, lane.row() + 8, high);
  }

  // REQUIRES: lanes meet before the next call.
  __device__ void prepare() {
    if (has_one()) return exchange_one();
    make_own(low, low_scales);
    if constexpr (kHigh) make_own(high, high_scales);
  }

 private:
  __device__ bool has_one() const { return !kHigh && m == 1; }

  // The lane's eight columns i, of a group.
  __device__ int first_column(int i) const {
    return i / 2 * (kGroup / 2) + lane.quarter() * 16 + i % 2 * 8;
  }

  // Zeros past the rows and columns of x: they add nothing, and make no row larger.
  __device__ void load_own(int group, int row, Bf16x8 (&to)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = group * kGroup + first_column(i);
      to[i] = {};
      if (row >= m || column >= k) continue;
      to[i] = *reinterpret_cast<const Bf16x8*>(x + int64_t{row} * k + column);
    }
  }

  // The four lanes of a row agree on its largest number; the scale of a row is needed by the lanes
  // that have its sums, which are others.
  __device__ void make_own(Bf16x8 (&row)[4], float (&scales)[2]) const {
    uint32_t both = 0;
#pragma unroll
    for (const Bf16x8& eight : row) {
#pragma unroll
      for (const uint32_t pair : eight.pairs) both = __vmaxu2(both, magnitudes(pair));
    }
    uint32_t most = max(both >> 16, both & 0xffffu);
    most = max(most, __shfl_xor_sync(kFullWarp, most, 1));
    most = max(most, __shfl_xor_sync(kFullWarp, most, 2));
    const RowScale scale = RowScale::of(most);
#pragma unroll
    for (Bf16x8& eight : row) {
#pragma unroll
      for (uint32_t& pair : eight.pairs) pair = scale.apply(pair);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[i] = __shfl_sync(kFullWarp, scale.inverse, (2 * lane.quarter() + i) * 4);
    }
  }

  // Four columns, in the first two pairs.
  __device__ void load_one(int group) {
    const int column = group * kGroup + lane.id * 4;
    uint2 four = {0, 0};
    if (column < k) four = *reinterpret_cast<const uint2*>(x + column);
    low[0].pairs[0] = four.x;
    low[0].pairs[1] = four.y;
  }

  __device__ void exchange_one() {
    __shared__ Exchange exchange;
    auto& shared = exchange[threadIdx.x / kWarpThreads];
    const uint32_t first = low[0].pairs[0];
    const uint32_t second = low[0].pairs[1];
    const uint32_t both = __vmaxu2(magnitudes(first), magnitudes(second));
    const uint32_t most = __reduce_max_sync(kFullWarp, max(both >> 16, both & 0xffffu));
    const RowScale scale = RowScale::of(most);
    reinterpret_cast<uint2*>(shared)[lane.id] = {scale.apply(first), scale.apply(second)};
    low_scales[0] = scale.inverse;
    __syncwarp();
    // Lanes of rows that x lacks read it, too; their products are not read.
#pragma unroll
    for (int i = 0; i < 4; ++i) low[i] = shared[first_column(i) / 8];
  }
};

// A lane has columns 16 t to 16 t + 15 of each half of a group.
struct E4m3Codec {
  using Call = E4m3Call;
  static constexpr int kPieces = 2;  // halves of a group
  static constexpr int kScales = 1;
  static constexpr bool kHasZeros = false;
  static constexpr bool kHasOrders = false;
  static constexpr bool kFitsBesideAttention = true;

  __device__ static int row_bytes(const Call& all) { return all.product.k; }

  __device__ static const float* scale_at(const Call& all, int row, int group, int /*s*/) {
    return all.scales.of(row, group);
  }

  // Tiles in turn, so that no product waits for the one before.
  template <int kEights, bool kHigh>
  __device__ static void add_group(const Stage<E4m3Codec, kEights>& stage,
                                   const Columns<E4m3Codec, kHigh>& x, const Lane& lane,
                                   Sums<kTilesOf<kEights>, kHigh>& sums) {
    constexpr int kTiles = kTilesOf<kEights>;
    Sums<kTiles, kHigh> of_group;
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // four columns of each lane
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t w[4];
        read_codes(stage.word(tile, 0, i / 4, lane, i % 4), w[0], w[2]);
        read_codes(stage.word(tile, 1, i / 4, lane, i % 4), w[1], w[3]);
        const int pair = i % 2 * 2;
        multiply_halves(of_group.low[tile], w, x.low[i / 2].pairs[pair],
                        x.low[i / 2].pairs[pair + 1]);
        if (kHigh) {
          multiply_halves(of_group.high[tile], w, x.high[i / 2].pairs[pair],
                          x.high[i / 2].pairs[pair + 1]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kRingTileRows + lane.row();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = stage.scale(0, i < 2 ? row : row + 8);
        sums.low[tile][i] =
            __fmaf_rn(of_group.low[tile][i], scale * x.low_scales[i % 2], sums.low[tile][i]);
        if (kHigh) {
          sums.high[tile][i] =
              __fmaf_rn(of_group.high[tile][i], scale * x.high_scales[i % 2], sums.high[tile][i]);
        }
      }
    }
  }
};

}  // namespace sluice::cuda
