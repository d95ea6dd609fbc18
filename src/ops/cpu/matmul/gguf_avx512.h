// convert_gguf with AVX-512BW: a line at a time, with the same bits.
//
// Included by matmul/avx512.cc and matmul/amx.cc only; see matmul/gguf.h. Thread rule: pure
// functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/matmul/kernel.h"

namespace sluice {
namespace {

// Two registers of finite numbers to pairs of bf16, the first in the lower halves.
inline __m512i round_pairs(__m512 evens, __m512 odds) {
#ifdef __AVX512BF16__
  // The instruction puts one operand's numbers after the other's. It takes subnormal numbers for 0,
  // and there are none: all are multiples of 2^-24, the smallest step of a scale.
  alignas(64) static constexpr uint16_t kInPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                        21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                        11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto halves = (__m512i)_mm512_cvtne2ps_pbh(odds, evens);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInPairs), halves);
#else
  const auto round_upper = [](__m512 values) {
    const __m512i raw = _mm512_castps_si512(values);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(raw, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(raw, _mm512_set1_epi32(0x7fff)), last);
  };
  constexpr __mmask32 kOddHalves = 0xaaaaaaaau;
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(round_upper(evens), 16), kOddHalves,
                               round_upper(odds));
#endif
}

inline __m512 widen_halves_avx512(const uint16_t* halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

inline __m128i load_bytes(const void* bytes) {
  return _mm_loadu_si128(static_cast<const __m128i*>(bytes));
}

// The contract of MatmulKernel::ConvertGguf.
template <int kBits>
void convert_gguf_avx512(const uint8_t* from, const GgufGroup& group, int64_t num_lines,
                         uint16_t* to) {
  const __m512 steps =
      _mm512_mul_ps(widen_halves_avx512(group.scales),
                    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(group.factors))));
  __m512 offsets = _mm512_setzero_ps();
  if (group.minima != nullptr) {
    offsets = _mm512_mul_ps(widen_halves_avx512(group.min_scales),
                            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(group.minima))));
  }
  const auto value_of = [&](__m512i codes) {
    return _mm512_fmsub_ps(_mm512_cvtepi32_ps(codes), steps, offsets);
  };
  for (int64_t line = 0; line < num_lines; ++line, to += 2 * kPanelRows) {
    __m512i evens;
    __m512i odds;
    if constexpr (kBits == 4) {
      const __m512i pairs = _mm512_cvtepu8_epi32(load_bytes(from + line * kPanelRows));
      evens = _mm512_and_si512(pairs, _mm512_set1_epi32(15));
      odds = _mm512_srli_epi32(pairs, 4);
    } else {
      const auto* const pair_bytes = from + line * kPanelRows * 2;
      const __m512i pairs =
          _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair_bytes)));
      evens = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 24), 24);
      odds = _mm512_srai_epi32(pairs, 8);
    }
    _mm512_storeu_si512(to, round_pairs(value_of(evens), value_of(odds)));
  }
}

}  // namespace
}  // namespace sluice
