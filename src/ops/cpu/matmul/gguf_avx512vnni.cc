// Products with weights in GGUF's blocks where the CPU has AVX-512-VNNI: one instruction for 32
// products and their sums.
//
// Used by matmul/avx512.cc. Thread rule: see matmul/kernel.h.
#include "ops/cpu/matmul/gguf_avx512.h"
#include "ops/cpu/matmul/gguf_products.h"

namespace sluice {
namespace {

// In assembly, as in matmul/avx512.cc: sums stay in their registers.
struct VnniDot {
  static __m512i run(__m512i sums, __m512i w, __m512i x) {
    asm("vpdpwssd %[x], %[w], %[sums]" : [sums] "+v"(sums) : [w] "v"(w), [x] "v"(x));
    return sums;
  }
};

constexpr GgufKernel kKernel = make_gguf_kernel<GgufVector512<VnniDot>>();

}  // namespace

const GgufKernel& gguf_kernel_avx512vnni() { return kKernel; }

}  // namespace sluice
