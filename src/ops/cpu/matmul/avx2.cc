// The matrix product with AVX2 and FMA: tiles of 6 rows by one panel, 12 of 16 registers are sums.
//
// Used by ops/cpu/matmul/matmul.cc when the CPU has no AVX-512. Bound by the f32 FMA rate with many
// rows and by DRAM with few. Thread rule: see matmul/kernel.h.
#include <immintrin.h>

#include "ops/cpu/matmul/fma.h"
#include "ops/cpu/matmul/gguf.h"

namespace sluice {
namespace {

// Pairs<4>, whose conversion GCC 12 splits into bytes.
struct Avx2Nibbles {
  static void load(const uint8_t* from, Words& pairs) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    pairs = reinterpret_cast<Words>(_mm256_cvtepu8_epi32(bytes));
  }
};

// The `Vector` of matmul/fma.h. A panel is two registers; 6 rows by 2 are the 12 sums.
struct Avx2Vector {
  using Register = __m256;
  static constexpr int kPerPanel = 2;
  static constexpr int kAccumulators = 12;
  static constexpr int kTileRows = 6;
  static constexpr auto kConvertUint4 = &convert_integers<4, Avx2Nibbles>;
  static constexpr auto kConvertUint8 = &convert_integers<8>;
  static constexpr auto kConvertGguf4 = &convert_gguf<4, Avx2Nibbles>;
  static constexpr auto kConvertGguf8 = &convert_gguf<8>;

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

constexpr MatmulKernel kKernel = make_fma_kernel<Avx2Vector>();

}  // namespace

const MatmulKernel& matmul_kernel_avx2() { return kKernel; }

}  // namespace sluice
