// The codec of skinny_ring.cuh for integers of 4 bits.
//
// A lane has 16 bytes of each 128 columns: four words of eight columns, one in each 32. Where
// groups are multiples of 128 columns, a sum over these has one scale, else each 32 columns have
// theirs. Used by uint4.cu and experts/coded_pairs.cu. Thread rule: device code.
#pragma once

#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {

static_assert(kGroup == kUint4Columns);
inline constexpr int kWordColumns = 8;
inline constexpr int kWords = 4;  // of a lane in a group
inline constexpr int kWordGroup = kGroup / kWords;

// What a kernel gets.
struct Uint4Call {
  SkinnyCall product;
  Uint4Layout layout;

  // With the weight that lies this many bytes on.
  __device__ Uint4Call at(int64_t offset) const {
    Uint4Call call = *this;
    call.product.weight = static_cast<const std::byte*>(product.weight) + offset;
    return call;
  }

  __device__ int64_t value_index(int64_t row, int32_t group) const {
    return int64_t{group} * layout.group_stride + row;
  }
  // Eight columns of a row.
  __device__ uint32_t word(int64_t row, int column) const {
    const auto* words = reinterpret_cast<const uint32_t*>(
        static_cast<const std::byte*>(product.weight) + row * layout.row_bytes);
    const int in_group = column % kGroup;
    return words[column / kGroup * (kGroup / kWordColumns) +
                 in_group % kWordGroup / kWordColumns * kWords + in_group / kWordGroup];
  }
  __device__ const float* scales() const {
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(product.weight) +
                                          layout.scales_at);
  }
  __device__ const uint8_t* zeros() const {
    return static_cast<const uint8_t*>(product.weight) + layout.zeros_at;
  }
};

// Integers that were read as bits of bf16 are 2^133 times too small, and x was multiplied by 2^80.
inline constexpr float kUint4ProductScale = 0x1p53f;

// The eight integers of a word as bf16, times 1 in the even pairs and 16 in the odd ones. Integers
// below 256 are bf16 2^133 times smaller: subnormal numbers and those of the smallest exponent.
__device__ inline Bf16x8 read_word(uint32_t word) {
  return {
      {word & 0x000f000fu, word & 0x00f000f0u, word >> 8 & 0x000f000fu, word >> 8 & 0x00f000f0u}};
}

// kWhole: all columns of a group of 128 have one scale.
template <bool kWhole>
struct Uint4Codec {
  using Call = Uint4Call;
  static constexpr int kPieces = 1;
  static constexpr int kScales = kWhole ? 1 : kWords;  // of a group of 128
  static constexpr bool kHasZeros = true;
  static constexpr int kNeighbours = 8;  // of load_columns

  __device__ static int first_column(const Lane& lane) { return lane.quarter() * kWordColumns; }
  __device__ static constexpr int column_offset(int word) { return word * kWordGroup; }

  __device__ static int row_bytes(const Call& all) {
    return static_cast<int>(all.layout.row_bytes);
  }

  __device__ static const float* scale_at(const Call& all, int row, int group, int s) {
    return all.scales() + all.value_index(row, group * kScales + s);
  }

  __device__ static const uint8_t* zero_at(const Call& all, int row, int group, int s) {
    return all.zeros() + all.value_index(row, group * kScales + s);
  }

  // Times 2^80 / 1 and 2^80 / 16, as read_word has it. Exact below 2^48.
  __device__ static Bf16x8 prepare(const Bf16x8& x) {
    Bf16x8 large;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t factors = i % 2 == 0 ? 0x67806780u : 0x65806580u;
      const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x.pairs[i]),
                                             *reinterpret_cast<const __nv_bfloat162*>(&factors));
      large.pairs[i] = *reinterpret_cast<const uint32_t*>(&product);
    }
    return large;
  }

  // Integers times x, less zero points times x: the sums of x are products with ones, so that
  // nothing is subtracted in each column. Tiles in turn, so that no product waits for the one
  // before.
  template <bool kHigh>
  __device__ static void add_group(const Stage<Uint4Codec>& stage,
                                   const Columns<Uint4Codec, kHigh>& x, const Lane& lane,
                                   Sums<kRingTiles, kHigh>& sums) {
    Sums<kRingTiles, kHigh> of_group;
    Sums<1, kHigh> of_x;
    const Bf16x8 ones = read_word(0x11111111u);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      of_x.add(0, x, w, ones, ones);
#pragma unroll
      for (int tile = 0; tile < kRingTiles; ++tile) {
        const auto& codes = stage.codes[tile];
        of_group.add(tile, x, w, read_word(codes[0][0][lane.id].pairs[w]),
                     read_word(codes[1][0][lane.id].pairs[w]));
      }
      if (kWhole && w + 1 < kWords) continue;
      const int s = kWhole ? 0 : w;
#pragma unroll
      for (int tile = 0; tile < kRingTiles; ++tile) {
        const int row = tile * kRingTileRows + lane.row();
        of_group.subtract(tile, of_x, static_cast<float>(stage.zero(s, row)),
                          static_cast<float>(stage.zero(s, row + 8)));
        sums.add_scaled(tile, of_group, stage.scale(s, row) * kUint4ProductScale,
                        stage.scale(s, row + 8) * kUint4ProductScale);
      }
      of_group = {};
      of_x = {};
    }
  }
};

}  // namespace sluice::cuda
