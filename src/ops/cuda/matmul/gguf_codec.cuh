// The codecs of skinny_ring.cuh for weights in GGUF's blocks (GgufLayout of op_memory.h).
//
// The sum over a group of columns is that of codes times x, times scale and factor, less that of x
// times min_scale and minimum. The words of values lie in a Stage where other formats have scales.
// Used by gguf.cu and experts/coded_pairs.cu. Thread rule: device code; with_gguf_codec is
// the host's.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/matmul/integer_codec.cuh"
#include "ops/cuda/matmul/skinny_ring.cuh"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {

// What a kernel gets.
struct GgufCall {
  SkinnyCall product;
  GgufLayout layout;

  // With the weight that lies this many bytes on.
  __device__ GgufCall at(int64_t offset) const {
    GgufCall call = *this;
    call.product.weight = static_cast<const std::byte*>(product.weight) + offset;
    return call;
  }

  // A word of a row's values for a group of 128 columns.
  __device__ const uint32_t* values(int row, int group, int word) const {
    const auto* first = reinterpret_cast<const uint32_t*>(
        static_cast<const std::byte*>(product.weight) + layout.values_at);
    const auto line = static_cast<uint32_t>(group * layout.words.count + word);
    // In 32 bits, since no matrix has more words.
    return first + (line * static_cast<uint32_t>(product.n) + static_cast<uint32_t>(row));
  }
};

inline GgufCall gguf_call(const SkinnyCall& product, const PackedWeight& weight) {
  return {.product = product,
          .layout = gguf_layout(weight.format, weight.num_rows, weight.num_cols)};
}

// A scale of f16 times bytes less a bias. A byte in the right place of an f32 is 2^15 more, and
// what that adds, some 20 bits, is subtracted by the same instruction; so products are exact.
struct ByteScale {
  float scale;
  float added;  // 2^15 and the bias, times scale

  // The lower half of `bits` is the scale; `times` is a power of two.
  __device__ ByteScale(uint32_t bits, float times, float bias)
      : scale(__half2float(__ushort_as_half(static_cast<uint16_t>(bits))) * times),
        added((32768.0f + bias) * scale) {}

  __device__ float times(uint32_t bytes, int i) const {
    const uint32_t byte = __byte_perm(bytes, 0x47000000u, 0x7504u | i << 4);
    return __fmaf_rn(__uint_as_float(byte), scale, -added);
  }
};

// What the codecs of both widths have of their values. A lane computes the steps and offsets of its
// four rows itself, as three other lanes do: a byte takes two instructions, and to pass the result
// on through shared memory would take as many.
template <int kGroupCols, int kBlockCols, bool kMinima>
struct GgufValueCodec {
  using Call = GgufCall;
  static constexpr GgufWords kWords = gguf_words(kGroupCols, kBlockCols, kMinima);
  static constexpr int kMinimaAt = kWords.minima_at;
  static constexpr int kScalesAt = kWords.scales_at;
  static constexpr int kScales = kWords.count;
  static constexpr bool kHasZeros = false;
  static constexpr bool kHasOrders = false;
  static constexpr bool kFitsBesideAttention = false;

  __device__ static int row_bytes(const Call& all) {
    return static_cast<int>(all.layout.row_bytes);
  }

  // A word of values in place of a scale; `step` and `offset` read its bits.
  __device__ static const float* scale_at(const Call& all, int row, int group, int s) {
    return reinterpret_cast<const float*>(all.values(row, group, s));
  }

  // Scale and factor of a group, times `times`. The compiler keeps words and scales that several
  // groups of a row share in registers.
  template <typename Codec, int kEights>
  __device__ static float step(const Stage<Codec, kEights>& stage, int group, int row,
                               float times) {
    const int block = group * kGroupCols / kBlockCols;
    const uint32_t pair = word(stage, kScalesAt + (kMinima ? block : block / 2), row);
    const ByteScale scale(kMinima || block % 2 == 0 ? pair & 0xffffu : pair >> 16, times, 128.0f);
    return scale.times(word(stage, group / 4, row), group % 4);
  }

  // Min_scale and minimum likewise.
  template <typename Codec, int kEights>
  __device__ static float offset(const Stage<Codec, kEights>& stage, int group, int row,
                                 float times) {
    const int block = group * kGroupCols / kBlockCols;
    const ByteScale scale(word(stage, kScalesAt + block, row) >> 16, times, 0.0f);
    return scale.times(word(stage, kMinimaAt + group / 4, row), group % 4);
  }

 private:
  template <typename Codec, int kEights>
  __device__ static uint32_t word(const Stage<Codec, kEights>& stage, int word, int row) {
    return __float_as_uint(stage.scale(word, row));
  }
};

// Adds the sums of a group: codes times x, and x times `unit`, both 2^53 times too small as those
// of integers. Without minima x counts only in the first.
template <typename Codec, int kEights, bool kHigh>
__device__ inline void add_gguf_group(const Stage<Codec, kEights>& stage, int group,
                                      const Lane& lane,
                                      const Sums<kTilesOf<kEights>, kHigh>& of_group,
                                      const Sums<1, kHigh>& of_x, float unit,
                                      Sums<kTilesOf<kEights>, kHigh>& sums) {
#pragma unroll
  for (int tile = 0; tile < kTilesOf<kEights>; ++tile) {
    const int row = tile * kRingTileRows + lane.row();
    sums.add_scaled(tile, of_group, Codec::step(stage, group, row, kUint4ProductScale),
                    Codec::step(stage, group, row + 8, kUint4ProductScale));
    if constexpr (Codec::kHasMinima) {
      sums.subtract(tile, of_x, Codec::offset(stage, group, row, kUint4ProductScale / unit),
                    Codec::offset(stage, group, row + 8, kUint4ProductScale / unit));
    }
  }
}

// Codes of 4 bits lie, and become bf16, as integers of 4 bits do. A word of a lane's 16 bytes has
// eight columns of a group, and four lanes have all of it.
template <int kBlockCols>
struct Gguf4Codec : GgufValueCodec<32, kBlockCols, true> {
  static constexpr int kPieces = 1;
  static constexpr int kNeighbours = 8;
  static constexpr bool kHasMinima = true;

  __device__ static int first_column(const Lane& lane) { return lane.quarter() * kWordColumns; }
  __device__ static constexpr int column_offset(int word) { return word * kWordGroup; }
  __device__ static Bf16x8 prepare(const Bf16x8& x) { return Uint4Codec<false>::prepare(x); }

  template <int kEights, bool kHigh>
  __device__ static void add_group(const Stage<Gguf4Codec, kEights>& stage,
                                   const Columns<Gguf4Codec, kHigh>& x, const Lane& lane,
                                   Sums<kTilesOf<kEights>, kHigh>& sums) {
    constexpr int kTiles = kTilesOf<kEights>;
    const Bf16x8 ones = read_word(0x11111111u);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      Sums<kTiles, kHigh> of_group;
      Sums<1, kHigh> of_x;
      of_x.add(0, x, w, ones, ones);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        of_group.add(tile, x, w, read_word(stage.word(tile, 0, 0, lane, w)),
                     read_word(stage.word(tile, 1, 0, lane, w)));
      }
      add_gguf_group(stage, w, lane, of_group, of_x, 1.0f, sums);
    }
  }
};

// A code of 8 bits is stored as its distance to -128, and such a byte is a bf16 2^133 times
// smaller, as in integer_codec.cuh. The sums of all rows begin with -128 times those of x, a
// product with a constant, which costs less than to subtract 128 from each code. A lane has four
// columns of every group of 16, which are those of one product.
template <int kGroupCols, int kBlockCols, bool kMinima>
struct Gguf8Codec : GgufValueCodec<kGroupCols, kBlockCols, kMinima> {
  static constexpr int kPieces = 2;  // halves of a group of 128
  static constexpr int kNeighbours = 4;
  static constexpr bool kHasMinima = kMinima;

  __device__ static int first_column(const Lane& lane) { return lane.quarter() * 4; }
  __device__ static constexpr int column_offset(int i) { return i * 32; }

  // Times 2^80, so that products with bytes as bf16 are normal numbers. Exact below 2^48.
  __device__ static Bf16x8 prepare(const Bf16x8& x) {
    constexpr uint32_t kLarge = 0x67806780u;
    Bf16x8 large;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x.pairs[i]),
                                             *reinterpret_cast<const __nv_bfloat162*>(&kLarge));
      large.pairs[i] = *reinterpret_cast<const uint32_t*>(&product);
    }
    return large;
  }

  template <int kEights, bool kHigh>
  __device__ static void add_group(const Stage<Gguf8Codec, kEights>& stage,
                                   const Columns<Gguf8Codec, kHigh>& x, const Lane& lane,
                                   Sums<kTilesOf<kEights>, kHigh>& sums) {
    constexpr int kTiles = kTilesOf<kEights>;
    constexpr int kProducts = kGroupCols / 16;  // of a group
    constexpr uint32_t kOrigin[4] = {0x80808080u, 0x80808080u, 0x80808080u, 0x80808080u};  // -128
#pragma unroll
    for (int first = 0; first < kGroup / 16; first += kProducts) {
      Sums<1, kHigh> of_x;
#pragma unroll
      for (int i = first; i < first + kProducts; ++i) {
        of_x.add_pairs(0, x, i / 2, i % 2 * 2, kOrigin);
      }
      Sums<kTiles, kHigh> of_group;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) begin_with(of_x, of_group, tile);
#pragma unroll
      for (int i = first; i < first + kProducts; ++i) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint32_t upper = stage.word(tile, 0, i / 4, lane, i % 4);
          const uint32_t lower = stage.word(tile, 1, i / 4, lane, i % 4);
          const uint32_t w[4] = {__byte_perm(upper, 0, 0x4140), __byte_perm(lower, 0, 0x4140),
                                 __byte_perm(upper, 0, 0x4342), __byte_perm(lower, 0, 0x4342)};
          of_group.add_pairs(tile, x, i / 2, i % 2 * 2, w);
        }
      }
      add_gguf_group(stage, first / kProducts, lane, of_group, of_x, -128.0f, sums);
    }
  }

 private:
  // A copy that costs nothing: the first product of a tile adds to the sums of x in place of 0.
  template <int kTiles, bool kHigh>
  __device__ static void begin_with(const Sums<1, kHigh>& of_x, Sums<kTiles, kHigh>& of_group,
                                    int tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of_group.low[tile][i] = of_x.low[0][i];
      if (kHigh) of_group.high[tile][i] = of_x.high[0][i];
    }
  }
};

// The part of with_gguf_codec for 8 bits.
template <int kGroupCols, int kBlockCols, typename Use>
void with_gguf8_codec(const GgufLayout& layout, const Use& use) {
  layout.has_minima ? use.template operator()<Gguf8Codec<kGroupCols, kBlockCols, true>>()
                    : use.template operator()<Gguf8Codec<kGroupCols, kBlockCols, false>>();
}

// Calls use.operator()<Codec>() with the codec of a layout.
template <typename Use>
void with_gguf_codec(const GgufLayout& layout, const Use& use) {
  const bool is_small = layout.block_cols == 32;
  if (layout.is_4) {
    return is_small ? use.template operator()<Gguf4Codec<32>>()
                    : use.template operator()<Gguf4Codec<128>>();
  }
  if (layout.group_cols == 32) {
    return is_small ? with_gguf8_codec<32, 32>(layout, use)
                    : with_gguf8_codec<32, 128>(layout, use);
  }
  is_small ? with_gguf8_codec<16, 32>(layout, use) : with_gguf8_codec<16, 128>(layout, use);
}

}  // namespace sluice::cuda
