// Integers of 4 bits, less their zero points, to bf16 with AVX-512BW: a register holds bf16 of all
// 31 differences, so one instruction looks up the 32 numbers of a line.
//
// Included by matmul/avx512.cc and matmul/amx.cc only; see matmul/integers.h. Thread rule: pure
// functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/matmul/block.h"

namespace sluice {
namespace {

// bf16 of the integers from -16 to 15.
struct alignas(64) Differences {
  uint16_t bits[32] = {};

  constexpr Differences() {
    for (int i = 0; i < 32; ++i) {
      const auto value = static_cast<float>(i - 16);
      bits[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
    }
  }
};
inline constexpr Differences kDifferences;

// The contract of MatmulKernel::convert_uint4, with the bits of convert_integers<4>.
void convert_uint4_avx512(const uint8_t* from, const uint8_t* zeros, int64_t num_lines,
                          uint16_t* to) {
  const auto load_bytes = [](const uint8_t* bytes) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  };
  const __m512i differences = _mm512_load_si512(kDifferences.bits);
  const __m512i zero = load_bytes(zeros);
  const __m512i place_of_zero =
      _mm512_sub_epi16(_mm512_set1_epi16(16), _mm512_or_si512(zero, _mm512_slli_epi32(zero, 16)));
  const __m512i mask = _mm512_set1_epi32(0x000f000f);
  constexpr int kFirstOrSecondAndThird = 0xa8;
  for (int64_t line = 0; line < num_lines; ++line, from += kPanelRows, to += 2 * kPanelRows) {
    __builtin_prefetch(from + kConvertAhead * kPanelRows / 2);
    const __m512i pairs = load_bytes(from);
    const __m512i numbers = _mm512_ternarylogic_epi32(pairs, _mm512_slli_epi32(pairs, 12), mask,
                                                      kFirstOrSecondAndThird);
    const __m512i places = _mm512_add_epi16(numbers, place_of_zero);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(places, differences));
  }
}

}  // namespace
}  // namespace sluice
