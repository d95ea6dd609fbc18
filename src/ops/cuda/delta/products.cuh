// Products of small bf16 matrices in shared memory, for the chunk kernels: fragments of
// mma.m16n8k16, loaded by ldmatrix; lane = 4 g + c.
//
// An accumulator has rows g and g + 8, columns 2 c and 2 c + 1: numbers 0 and 1 of row g, 2 and 3
// of row g + 8. A left operand has the same rows, and columns 2 c and 2 c + 8 with their
// neighbours; a right one column g, and these rows. Matrices that lie the other way are turned by
// the load. Rows in shared memory are those of panels, or padded by 16 bytes, so that eight rows of
// a column of pieces are in different banks. Thread rule: device code, whole warps.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "ops/cuda/delta/panel.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::delta {

// Padding of a row, in elements.
inline constexpr int kRowPadding = 8;

// Four 8x8 matrices, transposed or not; each lane gives the address of a row.
template <bool kTurned>
__device__ __forceinline__ void load_matrices(const uint16_t* row, uint32_t (&data)[4]) {
  const uint32_t address = shared_address(row);
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

// The left operand of 16 rows and 16 columns from `m` on.
template <int kWidth>
__device__ __forceinline__ void load_left(const uint16_t (*m)[kWidth], int row, int column,
                                          int lane, uint32_t (&a)[4]) {
  load_matrices<false>(&m[row + lane % 16][column + lane / 16 * 8], a);
}
// The right operands of two neighbouring tiles of 8 columns, 16 rows: b[0], b[1] and b[2], b[3].
// Rows of the panels from `m` on are rows of the operand.
__device__ __forceinline__ void load_right(const Panel* m, int row, int column, int lane,
                                           uint32_t (&b)[4]) {
  const int from = column + lane / 16 * 8;
  load_matrices<true>(&m[from / kPanelWidth][in_panel(row + lane % 16, from % kPanelWidth)], b);
}
// The same where rows of `m` are columns of the operand.
template <int kWidth>
__device__ __forceinline__ void load_right_turned(const uint16_t (*m)[kWidth], int row, int column,
                                                  int lane, uint32_t (&b)[4]) {
  load_matrices<false>(&m[column + lane % 8 + lane / 16 * 8][row + lane / 8 % 2 * 8], b);
}

__device__ __forceinline__ void load_right_turned(const Panel* m, int row, int column, int lane,
                                                  uint32_t (&b)[4]) {
  const int from = row + lane / 8 % 2 * 8;
  const int of = column + lane % 8 + lane / 16 * 8;
  load_matrices<false>(&m[from / kPanelWidth][in_panel(of, from % kPanelWidth)], b);
}

// d += a b.
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two tiles of columns, as load_right gives them.
__device__ __forceinline__ void multiply_pair(float (&low)[4], float (&high)[4],
                                              const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  multiply(low, a, b[0], b[1]);
  multiply(high, a, b[2], b[3]);
}

// d += a b by mma.m16n8k8 in tf32: a has rows g and g + 8 of column c, then of column c + 4; b has
// column g of rows c and c + 4; d is as above.
__device__ __forceinline__ void multiply_tf32(float (&d)[4], const uint32_t (&a)[4],
                                              const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Rounds two numbers to neighbouring bf16.
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ void store_pair(uint16_t* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = pack_pair(low, high);
}

}  // namespace sluice::cuda::delta
