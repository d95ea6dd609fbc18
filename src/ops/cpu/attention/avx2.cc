// Attention with AVX2 and FMA: kernels of 6 query rows by 16 tokens (or channels), 12 of the 16
// registers are sums.
//
// Used by ops/cpu/attention/attention.cc when the CPU has no AVX-512. Thread rule: see
// attention/kernel.h.
#include <immintrin.h>

#include "ops/cpu/attention/fma.h"

namespace sluice {
namespace {

// The `Vector` of attention/fma_chunk.h: 12 sums, 2 key registers and a broadcast query fit 16.
struct Avx2Vector {
  using Register = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kMaxRows = 6;
  static constexpr int kAccumulators = 12;

  static Register load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Register v) { _mm256_store_ps(p, v); }
  static Register broadcast(float value) { return _mm256_set1_ps(value); }
  static Register add(Register a, Register b) { return _mm256_add_ps(a, b); }
  static Register sub(Register a, Register b) { return _mm256_sub_ps(a, b); }
  static Register mul(Register a, Register b) { return _mm256_mul_ps(a, b); }
  static Register div(Register a, Register b) { return _mm256_div_ps(a, b); }
  static Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
  static Register max(Register a, Register b) { return _mm256_max_ps(a, b); }
  static float lane0(Register v) { return _mm256_cvtss_f32(v); }

  static Register load_bf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  // Rounds to nearest even; a NaN stays a quiet NaN.
  static void store_bf16(uint16_t* p, Register v) {
    const __m256i raw = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(raw, half), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(raw, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i wide = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
  }

  static Register round_to_int(Register v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // 2^n from its exponent bits. n + 127 is in (0, 255), since exp_nonpositive clamps its argument.
  static Register pow2(Register n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static Register zero_below(Register v, Register test, Register limit) {
    return _mm256_andnot_ps(_mm256_cmp_ps(test, limit, _CMP_LT_OQ), v);
  }
  // Lanes below `count` keep v; any count is valid, also one below 0 or above 8.
  static Register fill_from(Register v, int count, Register fill) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
    return _mm256_blendv_ps(fill, v, _mm256_castsi256_ps(keep));
  }

  static float halve_max(Register v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
  }
  // 16 numbers to 8 lanes: the first step of the halving tree.
  static Register fold_add(const Register (&v)[2]) { return _mm256_add_ps(v[0], v[1]); }
  static float halve_add(Register v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
  }

  // k[16 tokens][head_dim] bf16 to out[head_dim][16] f32. Pairs of channels are transposed as
  // one 32-bit number and separated at the end, which halves the shuffles. Tokens
  // from num_tokens on are not read; their place gets copies of the last one.
  static void transpose_keys(const uint16_t* k, int32_t num_tokens, int32_t head_dim, float* out,
                             TilePrefetch& ahead) {
    for (int half = 0; half < 2; ++half) {
      const uint16_t* rows[8];
      for (int i = 0; i < 8; ++i) {
        const int32_t token = min_of(half * 8 + i, num_tokens - 1);
        rows[i] = k + static_cast<int64_t>(token) * head_dim;
      }
      for (int32_t d = 0; d < head_dim; d += 16) {
        ahead.step(4);  // a sixteenth of a tile, which has 32 bytes per token in 16 channels
        transpose_16_channels(rows, d, out + static_cast<int64_t>(d) * 16 + half * 8);
      }
    }
  }

  // Channels [d, d + 16) of eight tokens: an 8x8 transpose of pairs of channels.
  static void transpose_16_channels(const uint16_t* const (&rows)[8], int32_t d, float* out) {
    __m256 r[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      r[i] = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + d)));
    }
    __m256 a[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    __m256 b[8];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
      b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
      b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
      b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      store_channel_pair(_mm256_permute2f128_ps(b[i], b[i + 4], 0x20), out + 2 * i * 16);
      store_channel_pair(_mm256_permute2f128_ps(b[i], b[i + 4], 0x31), out + (2 * i + 8) * 16);
    }
  }

  // Eight tokens of an even channel and the odd one after it.
  static void store_channel_pair(__m256 pairs, float* out) {
    const __m256i bits = _mm256_castps_si256(pairs);
    const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    store(out, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    store(out + 16, _mm256_castsi256_ps(_mm256_and_si256(bits, odd_mask)));
  }
};

constexpr AttentionKernel kKernel = make_fma_attention<Avx2Vector>();

}  // namespace

const AttentionKernel& attention_kernel_avx2() { return kKernel; }

}  // namespace sluice
