// Attention with AVX-512: kernels of 6 query rows by 4 tiles of 16 tokens (or channels), 24 of the
// 32 registers are sums.
//
// Used by ops/cpu/attention/attention.cc when the CPU has AVX-512 and no AMX. Thread rule: see
// attention/kernel.h.
#include "ops/cpu/avx512_vector.h"

namespace sluice {
namespace {

constexpr AttentionKernel kKernel = make_fma_attention<Avx512Vector>();

}  // namespace

const AttentionKernel& attention_kernel_avx512() { return kKernel; }

}  // namespace sluice
