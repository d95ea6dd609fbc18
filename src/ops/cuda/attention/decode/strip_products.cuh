// The instructions of the strips of decode attention (strip.cuh): loads of operands, products and
// the transposition between the two products.
//
// Thread rule: device code, whole warps.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace sluice::cuda::decode {

// Four 8x8 matrices; lane l says where row l % 8 of matrix l / 8 is.
template <bool kTurned>
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&data)[4]) {
  if constexpr (kTurned) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(data[0]), "=r"(data[1]), "=r"(data[2]), "=r"(data[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(data[0]), "=r"(data[1]), "=r"(data[2]), "=r"(data[3])
                 : "r"(address)
                 : "memory");
  }
}

// d += a b: a 16x16 and b 16x8 bf16, d 16x8 f32.
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Rounds two numbers to bf16 and transposes the 8x8 matrix whose rows are spread over the lanes.
__device__ __forceinline__ uint32_t to_bf16_transposed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
      : "=r"(transposed)
      : "r"(*reinterpret_cast<const uint32_t*>(&pair)));
  return transposed;
}

}  // namespace sluice::cuda::decode
