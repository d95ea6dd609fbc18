// Instructions of src/ops/cuda/delta/products.cuh on lanes: which numbers of a matrix in shared
// memory a lane has. Products round once.
//
// Thread rule: as lanes.h.
#pragma once

#include <array>

#include <cuda_bf16.h>

#include "ops/cuda/delta/panel.cuh"
#include "ops/cuda/matmul/skinny_products.cuh"
#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda::delta {

inline constexpr int kRowPadding = 8;

inline uint32_t pair_of(uint16_t low, uint16_t high) { return low | uint32_t{high} << 16; }

// What lane 4 g + c has of the 8 x 8 numbers of `m` from `row` and `column` on: of row g columns 2
// c and 2 c + 1.
template <int kWidth>
uint32_t along(const uint16_t (*m)[kWidth], int row, int column) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  return pair_of(m[row + g][column + 2 * c], m[row + g][column + 2 * c + 1]);
}
template <int kWidth>
void load_left(const uint16_t (*m)[kWidth], int row, int column, int /*lane*/, uint32_t (&a)[4]) {
  for (int i = 0; i < 4; ++i) a[i] = along(m, row + i % 2 * 8, column + i / 2 * 8);
}
template <int kWidth>
void load_right_turned(const uint16_t (*m)[kWidth], int row, int column, int /*lane*/,
                       uint32_t (&b)[4]) {
  for (int i = 0; i < 4; ++i) b[i] = along(m, column + i / 2 * 8, row + i % 2 * 8);
}

// The same of panels.
inline uint16_t number_of(const Panel* m, int row, int column) {
  return m[column / kPanelWidth][in_panel(row, column % kPanelWidth)];
}
inline void load_right(const Panel* m, int row, int column, int /*lane*/, uint32_t (&b)[4]) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int from = row + i % 2 * 8 + 2 * c, of = column + i / 2 * 8 + g;
    b[i] = pair_of(number_of(m, from, of), number_of(m, from + 1, of));
  }
}
inline void load_right_turned(const Panel* m, int row, int column, int /*lane*/, uint32_t (&b)[4]) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int of = column + i / 2 * 8 + g, from = row + i % 2 * 8 + 2 * c;
    b[i] = pair_of(number_of(m, of, from), number_of(m, of, from + 1));
  }
}

inline void multiply_pair(float (&low)[4], float (&high)[4], const uint32_t (&a)[4],
                          const uint32_t (&b)[4]) {
  multiply_tile(low, a, b[0], b[1]);
  multiply_tile(high, a, b[2], b[3]);
}

// Bits that tf32 does not have are not read.
inline void multiply_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  const auto number = [](uint32_t bits) { return double{__uint_as_float(bits & 0xffffe000)}; };
  lanes::exchange(std::array{a[0], a[1], a[2], a[3], b[0], b[1]}, [&](auto of) {
    for (size_t e = 0; e < 4; ++e) {
      double sum = d[e];
      for (int k = 0; k < 8; ++k) {
        const size_t later = static_cast<size_t>(k / 4);
        const uint32_t left = of(4 * g + k % 4)[2 * later + e / 2];
        const uint32_t right = of(4 * (2 * c + static_cast<int>(e % 2)) + k % 4)[4 + later];
        sum += number(left) * number(right);
      }
      d[e] = static_cast<float>(sum);
    }
    return 0;
  });
}

inline uint32_t pack_pair(float low, float high) {
  return pair_of(BFloat16(low).bits, BFloat16(high).bits);
}
inline void store_pair(uint16_t* to, float low, float high) {
  const uint32_t pair = pack_pair(low, high);
  std::memcpy(to, &pair, sizeof(pair));
}

}  // namespace sluice::cuda::delta
