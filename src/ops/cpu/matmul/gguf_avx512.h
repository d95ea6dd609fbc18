// Codes and values of GGUF's blocks with AVX-512.
//
// Included by matmul/gguf_products_avx512.h and gguf_amx.cc only; see matmul/gguf.h. Thread rule:
// pure functions.
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

}  // namespace
}  // namespace sluice
