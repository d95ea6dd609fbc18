// Codes of GGUF's blocks with AVX-512, to the pairs of integers that products take.
//
// Included by matmul/avx512.cc, gguf_avx512vnni.cc and gguf_amx.cc only; see matmul/gguf.h. Thread
// rule: pure functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/matmul/gguf.h"

namespace sluice {
namespace {

inline __m512i load_nibble_pairs(const uint8_t* line) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(line)));
}

inline __m256i load_byte_pairs(const uint8_t* line) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
}

// Sixteen scales of f16 times factors: exact, since a factor has at most 7 bits and a sign.
inline __m512 multiply_scales(const uint16_t* scales, __m512i factors) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales));
  return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_cvtepi32_ps(factors));
}

inline void read_steps_avx512(const GgufGroup& group, GgufSteps& to) {
  const auto load = [](const void* bytes) {
    return _mm_loadu_si128(static_cast<const __m128i*>(bytes));
  };
  _mm512_store_ps(to.steps,
                  multiply_scales(group.scales, _mm512_cvtepi8_epi32(load(group.factors))));
  __m512 offsets = _mm512_setzero_ps();
  if (group.minima != nullptr) {
    offsets = multiply_scales(group.min_scales, _mm512_cvtepu8_epi32(load(group.minima)));
  }
  _mm512_store_ps(to.offsets, offsets);
}

// Lines of a panel to pairs of 16 bits: three instructions for 32 codes of 4 bits, of which the
// second one of a byte goes to the upper half of its word.
inline void expand_codes_avx512(const uint8_t* from, bool is_4, int64_t num_lines, int16_t* to) {
  if (is_4) {
    const __m512i mask = _mm512_set1_epi32(0x000f000f);
    constexpr int kFirstOrSecondAndThird = 0xa8;
    for (int64_t line = 0; line < num_lines; ++line, from += kPanelRows, to += 2 * kPanelRows) {
      const __m512i pairs = load_nibble_pairs(from);
      _mm512_store_si512(to, _mm512_ternarylogic_epi32(pairs, _mm512_slli_epi32(pairs, 12), mask,
                                                       kFirstOrSecondAndThird));
    }
    return;
  }
  for (int64_t line = 0; line < num_lines; ++line, from += 2 * kPanelRows, to += 2 * kPanelRows) {
    _mm512_store_si512(to, _mm512_cvtepi8_epi16(load_byte_pairs(from)));
  }
}

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
