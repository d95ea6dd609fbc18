// The border between the driver of page selection and its inner loops, one set per ISA.
//
// Used by ops/cpu/pages/page_bounds.cc and the pages/kernels_<isa>.cc files, which are compiled
// with flags of their own (attention/kernel.h says what they may include). bf16 is passed as its
// bits. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {

// REQUIRES of both: head_dim is a multiple of 16, at most 256.
struct PageKernels {
  // bounds[2][head_dim] = smallest and largest of keys[num_tokens][head_dim]. REQUIRES: a token.
  void (*bound_keys)(const uint16_t* keys, int32_t num_tokens, int32_t head_dim, uint16_t* bounds);

  // The largest score of q[num_heads][head_dim] against bounds[2][head_dim]: of the query heads
  // that share one KV head (ops/pages/page_selection.h has the equation).
  float (*score_page)(const float* q, int32_t num_heads, int32_t head_dim, const uint16_t* bounds);
};

const PageKernels& page_kernels_portable();
const PageKernels& page_kernels_avx2();

}  // namespace sluice
