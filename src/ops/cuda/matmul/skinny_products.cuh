// Instructions of the products with few rows whose weights are codes: 16 weight rows times 8 rows
// of x, over 16 columns.
//
// A header of its own, since tests/ops/lanes has another one in its place (instructions.cuh).
// Thread rule: device code.
#pragma once

#include <cstdint>

#include <cuda_fp16.h>
#include <nv/target>

namespace sluice::cuda {

// sums += w * x in bf16. Lane 4 g + t has w: rows g and g + 8 of columns 2 t and 2 t + 1, then of
// those 8 further; x: the same columns of row g; sums: rows g, then g + 8, of rows 2 t and 2 t + 1
// of x.
__device__ inline void multiply_tile(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0,
                                     uint32_t x1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
}

// The same in f16.
__device__ inline void multiply_halves(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0,
                                       uint32_t x1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1));
}

// Four codes of e4m3 as f16, exactly: codes 0 and 1, then 2 and 3. GPUs before sm_89 have no
// instruction for it: a code whose bits are moved is 2^8 times smaller.
__device__ inline void read_codes(uint32_t codes, uint32_t& first, uint32_t& second) {
  NV_IF_ELSE_TARGET(
      NV_PROVIDES_SM_89,
      (asm("{\n.reg .b16 low, high;\n"
           "mov.b32 {low, high}, %2;\n"
           "cvt.rn.f16x2.e4m3x2 %0, low;\n"
           "cvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
           : "=r"(first), "=r"(second)
           : "r"(codes));),
      (const auto read =
           [](uint32_t in_high_bytes) {
             const uint32_t bits =
                 (in_high_bytes & 0x80008000u) | (in_high_bytes >> 1 & 0x3f803f80u);
             const __half2 value =
                 __hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(0x1p8f));
             return *reinterpret_cast<const uint32_t*>(&value);
           };
       first = read(__byte_perm(codes, 0, 0x1404)); second = read(__byte_perm(codes, 0, 0x3424));))
}

}  // namespace sluice::cuda
