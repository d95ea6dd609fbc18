// Numbers of e4m3 to bf16 with AVX-512BW: four registers hold the bf16 of all 128 magnitudes, so
// two instructions look up the 32 numbers of a line, in place of some twenty of arithmetic.
//
// Included by matmul/avx512.cc and matmul/amx.cc only; see matmul/e4m3_lines.h. Thread rule: pure
// functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/matmul/e4m3_lines.h"

namespace sluice {
namespace {

struct alignas(64) E4m3Magnitudes {
  uint16_t bits[128] = {};

  constexpr E4m3Magnitudes() {
    for (int code = 0; code < 128; ++code) bits[code] = e4m3_number(static_cast<uint8_t>(code));
  }
};
inline constexpr E4m3Magnitudes kE4m3Magnitudes;

// The contract of MatmulKernel::convert_e4m3, with the bits of convert_e4m3.
void convert_e4m3_avx512(const uint8_t* from, int64_t num_lines, uint16_t* to) {
  const auto magnitudes = [](int quarter) {
    return _mm512_load_si512(kE4m3Magnitudes.bits + quarter * 32);
  };
  const __m512i first = magnitudes(0);
  const __m512i second = magnitudes(1);
  const __m512i third = magnitudes(2);
  const __m512i fourth = magnitudes(3);
  const __m512i upper_half = _mm512_set1_epi16(0x40);
  const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
  constexpr int kFirstOrSecondAndThird = 0xf8;
  for (int64_t line = 0; line < num_lines; ++line, from += 2 * kPanelRows, to += 2 * kPanelRows) {
    __builtin_prefetch(from + kConvertAhead * kPanelRows);
    const __m512i codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    // A lookup reads the lowest six bits of a code.
    const __m512i lower = _mm512_permutex2var_epi16(first, codes, second);
    const __m512i upper = _mm512_permutex2var_epi16(third, codes, fourth);
    const __m512i magnitude =
        _mm512_mask_blend_epi16(_mm512_test_epi16_mask(codes, upper_half), lower, upper);
    _mm512_storeu_si512(to, _mm512_ternarylogic_epi32(magnitude, _mm512_slli_epi16(codes, 8), sign,
                                                      kFirstOrSecondAndThird));
  }
}

}  // namespace
}  // namespace sluice
