// Numbers of e4m3 to bf16 with AVX2: the upper and the lower bytes of 32 numbers at once, by
// arithmetic of bytes, and by a lookup for the 16 smallest magnitudes, of which 7 are subnormal.
//
// Included by matmul/avx2.cc only; see matmul/e4m3_lines.h. Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/matmul/e4m3_lines.h"

namespace sluice {
namespace {

struct alignas(16) SmallE4m3 {
  uint8_t upper[16] = {};
  uint8_t lower[16] = {};

  constexpr SmallE4m3() {
    for (int code = 0; code < 16; ++code) {
      const uint16_t number = e4m3_number(static_cast<uint8_t>(code));
      upper[code] = static_cast<uint8_t>(number >> 8);
      lower[code] = static_cast<uint8_t>(number);
    }
  }
};
inline constexpr SmallE4m3 kSmallE4m3;

// The contract of MatmulKernel::convert_e4m3, with the bits of convert_e4m3. A normal number c is
// 16 c + 0x3c00 beside its sign. NaN, which that makes 0x43f0, is 0x7fc0.
void convert_e4m3_avx2(const uint8_t* from, int64_t num_lines, uint16_t* to) {
  const auto all = [](int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); };
  const auto table = [](const uint8_t* bytes) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  };
  const __m256i small_upper = table(kSmallE4m3.upper);
  const __m256i small_lower = table(kSmallE4m3.lower);
  for (int64_t line = 0; line < num_lines; ++line, from += 2 * kPanelRows, to += 2 * kPanelRows) {
    __builtin_prefetch(from + kConvertAhead * kPanelRows);
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i magnitude = _mm256_and_si256(codes, all(0x7f));
    const __m256i is_small = _mm256_cmpgt_epi8(all(16), magnitude);
    const __m256i is_nan = _mm256_cmpeq_epi8(magnitude, all(0x7f));
    const __m256i normal_upper = _mm256_or_si256(
        _mm256_add_epi8(_mm256_and_si256(_mm256_srli_epi16(magnitude, 4), all(0x07)), all(0x3c)),
        _mm256_and_si256(is_nan, all(0x7f)));
    const __m256i normal_lower =
        _mm256_andnot_si256(_mm256_and_si256(is_nan, all(0x30)),
                            _mm256_and_si256(_mm256_slli_epi16(magnitude, 4), all(0xf0)));
    const __m256i upper = _mm256_or_si256(
        _mm256_blendv_epi8(normal_upper, _mm256_shuffle_epi8(small_upper, magnitude), is_small),
        _mm256_andnot_si256(all(0x7f), codes));
    const __m256i lower =
        _mm256_blendv_epi8(normal_lower, _mm256_shuffle_epi8(small_lower, magnitude), is_small);
    // Of each half of a register: its first 8 numbers, and its last 8.
    const __m256i firsts = _mm256_unpacklo_epi8(lower, upper);
    const __m256i lasts = _mm256_unpackhi_epi8(lower, upper);
    auto* const out = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(firsts, lasts, 0x20));
    _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(firsts, lasts, 0x31));
  }
}

}  // namespace
}  // namespace sluice
