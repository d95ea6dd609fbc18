// The matrix product with AVX2 and FMA: tiles of 6 rows by one panel, 12 of 16 registers are sums.
//
// Used by ops/cpu/matmul/matmul.cc when the CPU has no AVX-512. Bound by the f32 FMA rate with many
// rows and by DRAM with few. Thread rule: see matmul/kernel.h.
#include <immintrin.h>

#include "ops/cpu/matmul/e4m3_lines_avx2.h"
#include "ops/cpu/matmul/fma.h"
#include "ops/cpu/matmul/gguf_products.h"

namespace sluice {
namespace {

// The `Vector` of matmul/fma.h. A panel is two registers; 6 rows by 2 are the 12 sums.
struct Avx2Vector {
  using Register = __m256;
  static constexpr int kPerPanel = 2;
  static constexpr int kAccumulators = 12;
  static constexpr int kTileRows = 6;

  static Register load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Register v) { _mm256_store_ps(p, v); }
  static Register broadcast(const float* p) { return _mm256_broadcast_ss(p); }

  // In assembly because 12 sums, 2 weights, 1 input and the mask fill all 16 registers: from the
  // intrinsic, GCC 12 picks forms that overwrite an operand and spills five sums on every k.
  static Register fma(Register a, Register b, Register c) {
    asm("vfmadd231ps %[b], %[a], %[c]" : [c] "+x"(c) : [a] "x"(a), [b] "x"(b));
    return c;
  }

  // Eight pairs (even k, odd k) of neighbouring out features.
  static Register load_even(const uint16_t* pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(pairs), 16));
  }
  static Register load_odd(const uint16_t* pairs) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm256_castsi256_ps(_mm256_and_si256(load_pairs(pairs), mask));
  }
  static __m256i load_pairs(const uint16_t* pairs) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs));
  }
};

// Pairs<4>, whose conversion GCC 12 splits into bytes.
struct Avx2Nibbles {
  static void load(const uint8_t* from, Words& pairs) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    pairs = reinterpret_cast<Words>(_mm256_cvtepu8_epi32(bytes));
  }
};

// The `Vector` of matmul/gguf_products.h.
struct Avx2GgufVector {
  using Integers = __m256i;
  using CodePairs = __m256i;
  using Register = __m256;
  static constexpr int kPerPanel = 2;
  static constexpr int kGgufRows = 2;

  // Eight bytes, zero-extended.
  static __m256i load_bytes(const uint8_t* from) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  }
  // Half a line, of eight rows, at a time. Of a byte with two codes the second goes to the upper
  // half of its word.
  static void expand(const uint8_t* from, bool is_4, int64_t num_lines, int16_t* to) {
    for (int64_t half = 0; half < 2 * num_lines; ++half, to += kPanelRows) {
      __m256i pairs;
      if (is_4) {
        pairs = load_bytes(from + half * 8);
        pairs = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi32(pairs, 12)),
                                 _mm256_set1_epi32(0x000f000f));
      } else {
        const auto* const bytes = reinterpret_cast<const __m128i*>(from + half * kPanelRows);
        pairs = _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes));
      }
      _mm256_store_si256(reinterpret_cast<__m256i*>(to), pairs);
    }
  }
  // Eight scales of f16 times factors: exact, since a factor has at most 7 bits and a sign.
  static __m256 multiply_scales(const uint16_t* scales, __m256i factors) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
    return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_cvtepi32_ps(factors));
  }
  static void read_steps(const GgufGroup& group, GgufSteps& to) {
    for (int64_t half = 0; half < kPanelRows; half += 8) {
      const auto* const factors = reinterpret_cast<const __m128i*>(group.factors + half);
      const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(factors));
      _mm256_store_ps(to.steps + half, multiply_scales(group.scales + half, wide));
      __m256 offsets = _mm256_setzero_ps();
      if (group.minima != nullptr) {
        offsets = multiply_scales(group.min_scales + half, load_bytes(group.minima + half));
      }
      _mm256_store_ps(to.offsets + half, offsets);
    }
  }
  static float quantize(const uint16_t* x, int64_t group_cols, int16_t* to, GroupSums& sums) {
    return quantize_columns(x, group_cols, to, sums);
  }
  static Integers zero() { return _mm256_setzero_si256(); }
  static Integers load_pairs(const int16_t* pairs) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs));
  }
  static Integers broadcast_pair(const int16_t* pair) {
    int32_t bits;
    std::memcpy(&bits, pair, sizeof(bits));
    return _mm256_set1_epi32(bits);
  }
  static Integers dot(Integers sums, Integers w, Integers x) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(w, x));
  }
  static Register load(const float* p) { return _mm256_load_ps(p); }
  static void store(float* p, Register v) { _mm256_store_ps(p, v); }
  static Register broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Register to_float(Integers v) { return _mm256_cvtepi32_ps(v); }
  static Register multiply(Register a, Register b) { return _mm256_mul_ps(a, b); }
  static Register multiply_add(Register a, Register b, Register c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static Register multiply_subtract(Register a, Register b, Register c) {
    return _mm256_fnmadd_ps(a, b, c);
  }
};

constexpr MatmulKernel kKernel = make_fma_kernel<Avx2Vector>(
    &convert_integers<4, Avx2Nibbles>, &convert_e4m3_avx2, make_gguf_kernel<Avx2GgufVector>());

}  // namespace

const MatmulKernel& matmul_kernel_avx2() { return kKernel; }

}  // namespace sluice
