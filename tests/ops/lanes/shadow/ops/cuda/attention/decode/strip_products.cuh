// Instructions of src/ops/cuda/attention/decode/strip_products.cuh on lanes: lane 4 g + c has row g
// of an 8x8 matrix, columns 2 c and 2 c + 1.
//
// Thread rule: as lanes.h.
#pragma once

#include <array>

#include <cuda_bf16.h>

namespace sluice::cuda::decode {

template <bool kTurned>
void load_matrices(uint32_t address, uint32_t (&data)[4]) {
  SLUICE_CHECK(address % 16 == 0, "a row of a matrix at {}", address);
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  const auto element = [](uint32_t row, int column) {
    uint16_t value;
    std::memcpy(&value, lanes::block().shared + row + 2 * column, sizeof(value));
    return uint32_t{value};
  };
  lanes::exchange(address, [&](auto row_of) {
    for (int m = 0; m < 4; ++m) {
      data[m] =
          kTurned ? element(row_of(8 * m + 2 * c), g) | element(row_of(8 * m + 2 * c + 1), g) << 16
                  : element(row_of(8 * m + g), 2 * c) | element(row_of(8 * m + g), 2 * c + 1) << 16;
    }
    return 0;
  });
}

// Rounds once, which is what no GPU does.
inline void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                     uint32_t b1) {
  const auto half = [](uint32_t pair, int which) {
    return static_cast<double>(__uint_as_float(pair >> 16 * which << 16));
  };
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  double sums[4] = {d[0], d[1], d[2], d[3]};
  lanes::exchange(std::array{a0, a1, a2, a3, b0, b1}, [&](auto of) {
    for (int pair = 0; pair < 8; ++pair) {  // of the 16 summed
      const int later = pair / 4;
      const auto left = of(g * 4 + pair % 4);
      for (int column = 0; column < 2; ++column) {
        const uint32_t right = of((2 * c + column) * 4 + pair % 4)[4 + later];
        for (int row = 0; row < 2; ++row) {
          const uint32_t own = left[2 * later + row];
          sums[2 * row + column] += half(own, 0) * half(right, 0) + half(own, 1) * half(right, 1);
        }
      }
    }
    return 0;
  });
  for (int e = 0; e < 4; ++e) d[e] = static_cast<float>(sums[e]);
}

inline uint32_t to_bf16_transposed(float low, float high) {
  const auto pair = std::bit_cast<uint32_t>(__floats2bfloat162_rn(low, high));
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  return lanes::exchange(pair, [&](auto of) {
    const auto element = [&](int row) { return of(4 * row + g / 2) >> g % 2 * 16 & 0xffff; };
    return element(2 * c) | element(2 * c + 1) << 16;
  });
}

}  // namespace sluice::cuda::decode
