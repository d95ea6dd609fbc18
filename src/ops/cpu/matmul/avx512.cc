// The matrix product with AVX-512F: tiles of 12 rows by two panels, 24 of 32 registers are sums.
//
// Used by ops/cpu/matmul/matmul.cc when the CPU has AVX-512 but no AMX. Thread rule: see
// matmul/kernel.h.
#include <immintrin.h>

#include "ops/cpu/matmul/e4m3_lines_avx512.h"
#include "ops/cpu/matmul/fma.h"
#include "ops/cpu/matmul/gguf_products_avx512.h"
#include "ops/cpu/matmul/integers_avx512.h"

namespace sluice {
namespace {

// The `Vector` of matmul/fma.h. A panel is one register; 12 rows by 2 panels are the 24 sums.
struct Avx512Vector {
  using Register = __m512;
  static constexpr int kPerPanel = 1;
  static constexpr int kAccumulators = 24;
  static constexpr int kTileRows = 12;

  static Register load(const float* p) { return _mm512_load_ps(p); }
  static void store(float* p, Register v) { _mm512_store_ps(p, v); }
  static Register broadcast(const float* p) { return _mm512_set1_ps(*p); }

  // In assembly for the same reason as with AVX2: sums stay in their registers.
  static Register fma(Register a, Register b, Register c) {
    asm("vfmadd231ps %[b], %[a], %[c]" : [c] "+v"(c) : [a] "v"(a), [b] "v"(b));
    return c;
  }

  // Sixteen pairs (even k, odd k), one per out feature of the panel.
  static Register load_even(const uint16_t* pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_load_si512(pairs), 16));
  }
  static Register load_odd(const uint16_t* pairs) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_load_si512(pairs), mask));
  }
};

struct MaddDot {
  static __m512i run(__m512i sums, __m512i w, __m512i x) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(w, x));
  }
};

}  // namespace

const MatmulKernel& matmul_kernel_avx512() {
  static const MatmulKernel kernel = make_fma_kernel<Avx512Vector>(
      &convert_uint4_avx512, &convert_e4m3_avx512,
      __builtin_cpu_supports("avx512vnni") ? gguf_kernel_avx512vnni()
                                           : make_gguf_kernel<GgufVector512<MaddDot>>());
  return kernel;
}

}  // namespace sluice
