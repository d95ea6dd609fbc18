// The vector type of the AVX-512 kernel, which the AMX kernel shares for its exponentials.
//
// Included by attention/avx512.cc and, through amx_layout.h, attention/amx.cc only; each gets its
// own copy, compiled for its ISA (hence the unnamed namespace in a header; see attention/kernel.h).
// Thread rule: pure functions.
#pragma once

#include <immintrin.h>

#include "ops/cpu/attention/fma.h"

namespace sluice {
namespace {

// Transposes 16 rows of 16 32-bit numbers in place: 64 shuffles.
inline void transpose_16x16(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // r[4 g + c] now holds column 4 l + c of rows 4 g to 4 g + 3 in its 128-bit lane l.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xee);
    t[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// The 16 bf16 nearest to 16 floats, even on ties, in the low halves of 32-bit numbers; a NaN stays
// a quiet NaN.
inline __m512i round_bf16(__m512 v) {
  const __m512i raw = _mm512_castps_si512(v);
  const __m512i top = _mm512_srli_epi32(raw, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(raw, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40));
}

// The same, packed to 16 bits each.
inline __m256i narrow_bf16(__m512 v) { return _mm512_cvtepi32_epi16(round_bf16(v)); }

// The `Vector` of attention/fma_chunk.h. 6 rows by 4 registers are 24 sums; the other 8 of the 32
// registers hold 4 key registers and a broadcast query.
struct Avx512Vector {
  using Register = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kMaxRows = 6;
  static constexpr int kAccumulators = 24;

  static Register load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Register v) { _mm512_store_ps(p, v); }
  static Register broadcast(float value) { return _mm512_set1_ps(value); }
  static Register add(Register a, Register b) { return _mm512_add_ps(a, b); }
  static Register sub(Register a, Register b) { return _mm512_sub_ps(a, b); }
  static Register mul(Register a, Register b) { return _mm512_mul_ps(a, b); }
  static Register div(Register a, Register b) { return _mm512_div_ps(a, b); }
  static Register fma(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
  static Register max(Register a, Register b) { return _mm512_max_ps(a, b); }
  static float lane0(Register v) { return _mm512_cvtss_f32(v); }

  static Register load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  // Rounds to nearest even; a NaN stays a quiet NaN.
  static void store_bf16(uint16_t* p, Register v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(v));
  }

  static Register round_to_int(Register v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Register pow2(Register n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  static Register zero_below(Register v, Register test, Register limit) {
    // "Not less, or unordered": a NaN keeps its value.
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, limit, _CMP_NLT_UQ), v);
  }
  static Register fill_from(Register v, int count, Register fill) {
    return _mm512_mask_mov_ps(fill, static_cast<__mmask16>((1u << count) - 1u), v);
  }

  static float halve_max(Register v) {
    const __m256 x = _mm256_max_ps(lower_half(v), upper_half(v));
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static Register fold_add(const Register (&v)[1]) { return v[0]; }
  static float halve_add(Register v) {
    const __m256 x = _mm256_add_ps(lower_half(v), upper_half(v));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static __m256 lower_half(Register v) { return _mm512_castps512_ps256(v); }
  static __m256 upper_half(Register v) { return _mm512_extractf32x8_ps(v, 1); }

  // k[16 tokens][head_dim] bf16 to out[head_dim][16] f32. Pairs of channels are transposed as
  // one 32-bit number and separated at the end. Tokens from num_tokens on are
  // not read; their place gets copies of the last one.
  static void transpose_keys(const uint16_t* k, int32_t num_tokens, int32_t head_dim, float* out,
                             TilePrefetch& ahead) {
    const uint16_t* rows[16];
    for (int i = 0; i < 16; ++i) {
      rows[i] = k + static_cast<int64_t>(min_of(i, num_tokens - 1)) * head_dim;
    }
    const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    for (int32_t d = 0; d < head_dim; d += 32) {
      ahead.step(16);  // what this step reads: 64 bytes per token
      const int32_t pairs = min_of(16, (head_dim - d) / 2);  // 8 in the last step of an odd tile
      const auto mask = static_cast<__mmask16>((1u << pairs) - 1u);
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = _mm512_maskz_loadu_epi32(mask, rows[i] + d);
      transpose_16x16(r);
      float* to = out + static_cast<int64_t>(d) * kTileTokens;
      for (int32_t pair = 0; pair < pairs; ++pair, to += 2 * kTileTokens) {
        store(to, _mm512_castsi512_ps(_mm512_slli_epi32(r[pair], 16)));
        store(to + kTileTokens, _mm512_castsi512_ps(_mm512_and_si512(r[pair], odd_mask)));
      }
    }
  }
};

}  // namespace
}  // namespace sluice
