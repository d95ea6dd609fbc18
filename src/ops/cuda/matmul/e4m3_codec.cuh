// The codec of skinny_ring.cuh for weights in e4m3.
//
// The sum over 128 columns, those of a scale, is multiplied by the scale in f32 and added to those
// before. Used by e4m3.cu and experts/coded_pairs.cu. Thread rule: device code.
#pragma once

#include "ops/cuda/matmul/e4m3.h"
#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {

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

// The products of E4m3Codec::prepare and code_pair are 2^40 times too small.
inline constexpr float kE4m3ProductScale = 0x1p40f;

// Two codes as bf16 2^120 times smaller, subnormal ones included: only bits move.
__device__ inline uint32_t code_pair(uint32_t signs, uint32_t magnitudes) {
  return (signs & 0x80008000u) | (magnitudes & 0x07f007f0u);
}

// Eight neighbouring codes in the order of E4m3Codec::prepare.
__device__ inline Bf16x8 read_codes(uint32_t first, uint32_t second) {
  return {{code_pair(first << 8, first << 4), code_pair(first, first >> 4),
           code_pair(second << 8, second << 4), code_pair(second, second >> 4)}};
}

// A lane has columns 16 t to 16 t + 15 of each half of a group.
struct E4m3Codec {
  using Call = E4m3Call;
  static constexpr int kPieces = 2;  // halves of a group
  static constexpr int kScales = 1;
  static constexpr bool kHasZeros = false;
  static constexpr bool kHasOrders = false;
  static constexpr int kNeighbours = 8;  // of load_columns

  __device__ static int first_column(const Lane& lane) { return lane.quarter() * 16; }
  __device__ static constexpr int column_offset(int i) { return i / 2 * (kGroup / 2) + i % 2 * 8; }

  __device__ static int row_bytes(const Call& all) { return all.product.k; }

  __device__ static const float* scale_at(const Call& all, int row, int group, int /*s*/) {
    return all.scales.of(row, group);
  }

  // Columns 0, 2 and 1, 3 of four neighbours, as two pairs, times 2^80: the order in which codes
  // are cheapest to take apart. The sum over columns does not depend on their order, as long as x
  // has the same. Exact below 2^48.
  __device__ static Bf16x8 prepare(const Bf16x8& x) {
    constexpr uint32_t kLarge = 0x67806780u;
    Bf16x8 ordered;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair =
          __byte_perm(x.pairs[i / 2 * 2], x.pairs[i / 2 * 2 + 1], i % 2 == 0 ? 0x5410 : 0x7632);
      const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair),
                                             *reinterpret_cast<const __nv_bfloat162*>(&kLarge));
      ordered.pairs[i] = *reinterpret_cast<const uint32_t*>(&product);
    }
    return ordered;
  }

  // Tiles in turn, so that no product waits for the one before.
  template <bool kHigh>
  __device__ static void add_group(const Stage<E4m3Codec>& stage,
                                   const Columns<E4m3Codec, kHigh>& x, const Lane& lane,
                                   Sums<kRingTiles, kHigh>& sums) {
    Sums<kRingTiles, kHigh> of_group;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int tile = 0; tile < kRingTiles; ++tile) {
        const auto& upper = stage.codes[tile][0][i / 2][lane.id].pairs;
        const auto& lower = stage.codes[tile][1][i / 2][lane.id].pairs;
        of_group.add(tile, x, i, read_codes(upper[i % 2 * 2], upper[i % 2 * 2 + 1]),
                     read_codes(lower[i % 2 * 2], lower[i % 2 * 2 + 1]));
      }
    }
#pragma unroll
    for (int tile = 0; tile < kRingTiles; ++tile) {
      const int row = tile * kRingTileRows + lane.row();
      sums.add_scaled(tile, of_group, stage.scale(0, row) * kE4m3ProductScale,
                      stage.scale(0, row + 8) * kE4m3ProductScale);
    }
  }
};

}  // namespace sluice::cuda
