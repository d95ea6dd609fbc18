// Instructions of src/ops/cuda/delta/products.cuh on lanes: which numbers of a matrix in shared
// memory a lane has. Products round once.
//
// Thread rule: as lanes.h.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/matmul/skinny_products.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::delta {

inline constexpr int kRowPadding = 8;

inline uint32_t pair_of(uint16_t low, uint16_t high) { return low | uint32_t{high} << 16; }

// What lane 4 g + c has of the 8 x 8 numbers of `m` from `row` and `column` on: of row g columns 2
// c and 2 c + 1; across, of column g rows 2 c and 2 c + 1.
template <int kWidth>
uint32_t along(const uint16_t (*m)[kWidth], int row, int column) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  return pair_of(m[row + g][column + 2 * c], m[row + g][column + 2 * c + 1]);
}
template <int kWidth>
uint32_t across(const uint16_t (*m)[kWidth], int row, int column) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  return pair_of(m[row + 2 * c][column + g], m[row + 2 * c + 1][column + g]);
}

template <int kWidth>
void load_left(const uint16_t (*m)[kWidth], int row, int column, int /*lane*/, uint32_t (&a)[4]) {
  for (int i = 0; i < 4; ++i) a[i] = along(m, row + i % 2 * 8, column + i / 2 * 8);
}
template <int kWidth>
void load_right(const uint16_t (*m)[kWidth], int row, int column, int /*lane*/, uint32_t (&b)[4]) {
  for (int i = 0; i < 4; ++i) b[i] = across(m, row + i % 2 * 8, column + i / 2 * 8);
}
template <int kWidth>
void load_right_turned(const uint16_t (*m)[kWidth], int row, int column, int /*lane*/,
                       uint32_t (&b)[4]) {
  for (int i = 0; i < 4; ++i) b[i] = along(m, column + i / 2 * 8, row + i % 2 * 8);
}

inline void multiply_pair(float (&low)[4], float (&high)[4], const uint32_t (&a)[4],
                          const uint32_t (&b)[4]) {
  multiply_tile(low, a, b[0], b[1]);
  multiply_tile(high, a, b[2], b[3]);
}

inline uint32_t pack_pair(float low, float high) {
  return pair_of(BFloat16(low).bits, BFloat16(high).bits);
}
inline void store_pair(uint16_t* to, float low, float high) {
  const uint32_t pair = pack_pair(low, high);
  std::memcpy(to, &pair, sizeof(pair));
}

}  // namespace sluice::cuda::delta
