// The codecs of skinny_ring.cuh for integers of 4 and 8 bits.
//
// A lane has eight columns of each 32. Where groups are multiples of 128 columns, a sum over these
// has one scale, else each 32 columns have theirs. Used by integers.cu, gguf_codec.cuh and
// experts/coded_pairs.cu. Thread rule: device code; with_integer_codec is the host's.
#pragma once

#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {

static_assert(kGroup == kIntegerColumns);
inline constexpr int kWordColumns = 8;
inline constexpr int kWords = 4;  // of a lane in a group
inline constexpr int kWordGroup = kGroup / kWords;

// What a kernel gets.
struct IntegerCall {
  SkinnyCall product;  // with orders, x has its columns in each of them, one after the other
  IntegerLayout layout;
  int64_t order_stride;  // elements of x from an order to the next

  // With the weight that lies this many bytes on.
  __device__ IntegerCall at(int64_t offset) const {
    IntegerCall call = *this;
    call.product.weight = static_cast<const std::byte*>(product.weight) + offset;
    return call;
  }

  // Where the scale and the zero point of a group are among those of their kind.
  __device__ int64_t value_index(int64_t row, int32_t group) const {
    return int64_t{group} * layout.group_stride + row;
  }
  // Where eight codes of a row lie side by side, from a multiple of 8 columns on.
  template <bool kIs4>
  __device__ const uint32_t* words(int64_t row, int column) const {
    const auto* of_row = reinterpret_cast<const uint32_t*>(
        static_cast<const std::byte*>(product.weight) + row * layout.row_bytes);
    const int of_lane = column % kWordGroup / kWordColumns * 4;
    if constexpr (kIs4) {
      return of_row +
             (column / kGroup * (kGroup / kWordColumns) + of_lane + column % kGroup / kWordGroup);
    } else {
      constexpr int kPiece = 2 * kWordGroup;  // columns, four a word
      return of_row + (column / kPiece * (kPiece / 4) + of_lane + column % kPiece / kWordGroup * 2);
    }
  }
  __device__ const float* scales() const {
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(product.weight) +
                                          layout.scales_at);
  }
  __device__ const uint8_t* zeros() const {
    return static_cast<const uint8_t*>(product.weight) + layout.zeros_at;
  }
  __device__ const int32_t* orders() const {
    return reinterpret_cast<const int32_t*>(static_cast<const std::byte*>(product.weight) +
                                            layout.orders_at);
  }
  // The number of a row's order. kOrderRows rows are a tile of the ring's product, so each tile has
  // one order.
  __device__ int32_t order_of(int64_t row) const {
    return reinterpret_cast<const int32_t*>(static_cast<const std::byte*>(product.weight) +
                                            layout.order_of_rows_at)[row / kOrderRows];
  }
  // The column of x of each column of a row; null: the same.
  __device__ const int32_t* columns_of(int64_t row) const {
    if (layout.num_orders == 0) return nullptr;
    return orders() + int64_t{order_of(row)} * product.k;
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

// What both codecs have. kWhole: all columns of a group of 128 have one scale.
template <bool kWhole, bool kOrders>
struct IntegerValueCodec {
  using Call = IntegerCall;
  static constexpr int kScales = kWhole ? 1 : kWords;  // of a group of 128
  static constexpr bool kHasZeros = true;
  static constexpr bool kHasOrders = kOrders;
  static constexpr bool kFitsBesideAttention = !kOrders;
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
};

template <bool kWhole, bool kOrders = false>
struct Uint4Codec : IntegerValueCodec<kWhole, kOrders> {
  static constexpr int kPieces = 1;

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
  template <int kEights, typename X, bool kHigh>
  __device__ static void add_group(const Stage<Uint4Codec, kEights>& stage, const X& x,
                                   const Lane& lane, Sums<kTilesOf<kEights>, kHigh>& sums) {
    constexpr int kTiles = kTilesOf<kEights>;
    constexpr int kOrdersAtOnce = kOrders ? kTiles : 1;
    Sums<kTiles, kHigh> of_group;
    Sums<kOrdersAtOnce, kHigh> of_x;
    const Bf16x8 ones = read_word(0x11111111u);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int tile = 0; tile < kOrdersAtOnce; ++tile) of_x.add(tile, x, w, ones, ones);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        of_group.add(tile, x, w, read_word(stage.word(tile, 0, 0, lane, w)),
                     read_word(stage.word(tile, 1, 0, lane, w)));
      }
      if (kWhole && w + 1 < kWords) continue;
      const int s = kWhole ? 0 : w;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
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

// Integers less their zero points are bf16 2^13 times smaller.
inline constexpr float kUint8ProductScale = 0x1p13f;

// Two integers, whose bits are bf16 2^133 times smaller, become numbers less their zero point by
// one instruction for both. Exact, so that columns of the zero point add nothing: sums of x times
// zero points, as with 4 bits, would leave what sums of products of 16 bits are rounded by. A code
// costs one instruction, twice that of 4 bits, and has twice the bytes.
template <bool kWhole, bool kOrders = false>
struct Uint8Codec : IntegerValueCodec<kWhole, kOrders> {
  static constexpr int kPieces = 2;  // halves of a group of 128

  // Numbers are lifted, not x.
  __device__ static Bf16x8 prepare(const Bf16x8& x) { return x; }

  template <int kEights, typename X, bool kHigh>
  __device__ static void add_group(const Stage<Uint8Codec, kEights>& stage, const X& x,
                                   const Lane& lane, Sums<kTilesOf<kEights>, kHigh>& sums) {
    constexpr int kTiles = kTilesOf<kEights>;
    Sums<kTiles, kHigh> of_group;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int s = kWhole ? 0 : i;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = tile * kRingTileRows + lane.row();
        const int first = i % 2 * 2;
        const auto numbers = [&](int half) {
          return read_eight(stage.word(tile, half, i / 2, lane, first),
                            stage.word(tile, half, i / 2, lane, first + 1),
                            stage.zero(s, row + 8 * half));
        };
        of_group.add(tile, x, i, numbers(0), numbers(1));
      }
      if (kWhole && i + 1 < kWords) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = tile * kRingTileRows + lane.row();
        sums.add_scaled(tile, of_group, stage.scale(s, row) * kUint8ProductScale,
                        stage.scale(s, row + 8) * kUint8ProductScale);
      }
      of_group = {};
    }
  }

 private:
  __device__ static __nv_bfloat162 as_bf16(const uint32_t& bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
  }

  // Four integers a word. Their difference to the zero point has 8 bits and a sign, as bf16 has.
  __device__ static Bf16x8 read_eight(uint32_t first, uint32_t second, uint32_t zero) {
    constexpr uint32_t kUp = 0x7b807b80u;  // 2^120
    constexpr uint32_t kDown = kUp | 0x80008000u;
    const __nv_bfloat162 less = __hmul2(as_bf16(zero * 0x00010001u), as_bf16(kDown));
    Bf16x8 eight;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = __byte_perm(i < 2 ? first : second, 0, i % 2 == 0 ? 0x4140 : 0x4342);
      const __nv_bfloat162 numbers = __hfma2(as_bf16(two), as_bf16(kUp), less);
      eight.pairs[i] = *reinterpret_cast<const uint32_t*>(&numbers);
    }
    return eight;
  }
};

// The part of with_integer_codec for groups of one kind.
template <bool kWhole, bool kOrders, typename Use>
void with_integer_width(const IntegerLayout& layout, const Use& use) {
  layout.is_4 ? use.template operator()<Uint4Codec<kWhole, kOrders>>()
              : use.template operator()<Uint8Codec<kWhole, kOrders>>();
}

// Calls use.operator()<Codec>() with the codec of a layout.
template <typename Use>
void with_integer_codec(const IntegerLayout& layout, const Use& use) {
  const bool is_whole = layout.group_cols == kGroup;
  if (layout.num_orders > 0) {
    return is_whole ? with_integer_width<true, true>(layout, use)
                    : with_integer_width<false, true>(layout, use);
  }
  is_whole ? with_integer_width<true, false>(layout, use)
           : with_integer_width<false, false>(layout, use);
}

}  // namespace sluice::cuda
