// The product with weights in GGUF's blocks in integers, with AVX-512: its vectors, and x as
// integers.
//
// Included by matmul/avx512.cc and gguf_avx512vnni.cc only; see matmul/gguf_products.h. Thread
// rule: pure functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/matmul/gguf_avx512.h"
#include "ops/cpu/matmul/gguf_products.h"

namespace sluice {
namespace {

// ---- x as integers -----------------------------------------------------------------------------

inline uint16_t largest_magnitude(__m512i halves) {
  const __m512i magnitudes = _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff));
  const __m256i of_16 = _mm256_max_epu16(_mm512_castsi512_si256(magnitudes),
                                         _mm512_extracti64x4_epi64(magnitudes, 1));
  const __m128i of_8 =
      _mm_max_epu16(_mm256_castsi256_si128(of_16), _mm256_extracti128_si256(of_16, 1));
  // The least of the complements.
  const __m128i least = _mm_minpos_epu16(_mm_xor_si128(of_8, _mm_set1_epi16(-1)));
  return static_cast<uint16_t>(~_mm_cvtsi128_si32(least));
}

// store_integers, of sixteen numbers.
inline __m256i integers_of(__m256i halves, float inverse) {
  const __m512 numbers = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  const __m512 shifted =
      _mm512_fmadd_ps(numbers, _mm512_set1_ps(inverse), _mm512_set1_ps(0x1.8p23f));
  return _mm512_cvtepi32_epi16(_mm512_castps_si512(shifted));
}

inline int32_t sum_of_words(__m256i words) {
  const __m128i of_4 =
      _mm_add_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  const __m128i of_2 = _mm_add_epi32(of_4, _mm_unpackhi_epi64(of_4, of_4));
  return _mm_cvtsi128_si32(of_2) + _mm_extract_epi32(of_2, 1);
}

inline void sum_groups_of(__m512i integers, int64_t group_cols, GroupSums& sums) {
  const __m512i pairs = _mm512_madd_epi16(integers, _mm512_set1_epi16(1));
  const __m256i low = _mm512_castsi512_si256(pairs);
  const __m256i high = _mm512_extracti64x4_epi64(pairs, 1);
  if (group_cols == kGgufXCols) {
    sums[0] = sum_of_words(_mm256_add_epi32(low, high));
    return;
  }
  sums[0] = sum_of_words(low);
  sums[1] = sum_of_words(high);
}

// quantize_columns in parts, since kernels for few rows keep the bytes of the integers in another
// order. With vectors of the compiler it took 22 % of the time of a prefill on a Zen 5, now 13 %.
struct Columns32 {
  __m512i integers;  // of 16 bits
  float scale = 0.0f;

  explicit Columns32(const uint16_t* x) {
    const __m512i halves = _mm512_loadu_si512(x);
    const ColumnScale of_columns(largest_magnitude(halves));
    const __m256i low = integers_of(_mm512_castsi512_si256(halves), of_columns.inverse);
    const __m256i high = integers_of(_mm512_extracti64x4_epi64(halves, 1), of_columns.inverse);
    integers = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    scale = of_columns.scale;
  }
};

// ---- Products ----------------------------------------------------------------------------------

// The `Vector` of matmul/gguf_products.h; `Dot` has the instructions of a product of pairs.
template <typename Dot>
struct GgufVector512 {
  using Integers = __m512i;
  using CodePairs = __m512i;
  using Register = __m512;
  static constexpr int kPerPanel = 1;
  static constexpr int kGgufRows = 12;

  static void expand(const uint8_t* from, bool is_4, int64_t num_lines, int16_t* to) {
    expand_codes_avx512(from, is_4, num_lines, to);
  }
  static void read_steps(const GgufGroup& group, GgufSteps& to) { read_steps_avx512(group, to); }
  static float quantize(const uint16_t* x, int64_t group_cols, int16_t* to, GroupSums& sums) {
    const Columns32 columns(x);
    _mm512_storeu_si512(to, columns.integers);
    sum_groups_of(columns.integers, group_cols, sums);
    return columns.scale;
  }
  static Integers zero() { return _mm512_setzero_si512(); }
  static Integers load_pairs(const int16_t* pairs) { return _mm512_load_si512(pairs); }
  static Integers broadcast_pair(const int16_t* pair) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof(bits));
    return _mm512_set1_epi32(bits);
  }
  static Integers dot(Integers sums, Integers w, Integers x) { return Dot::run(sums, w, x); }
  static Register load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Register v) { _mm512_store_ps(p, v); }
  static Register broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Register to_float(Integers v) { return _mm512_cvtepi32_ps(v); }
  static Register multiply(Register a, Register b) { return _mm512_mul_ps(a, b); }
  static Register multiply_add(Register a, Register b, Register c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static Register multiply_subtract(Register a, Register b, Register c) {
    return _mm512_fnmadd_ps(a, b, c);
  }
};

}  // namespace
}  // namespace sluice
