// Instructions of src/ops/cuda/matmul/skinny_products.cuh on lanes. A product rounds once, which is
// what no GPU does.
//
// Thread rule: as lanes.h.
#pragma once

#include <array>

#include <cuda_fp16.h>

#include "ops/lanes/lanes.h"

namespace sluice::cuda {

// number(bits): what 16 bits stand for. Lanes give each other the registers that the instruction
// gathers: w of the rows g and g + 8, x of the rows 2 t and 2 t + 1.
template <typename Number>
void multiply_any(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0, uint32_t x1,
                  const Number& number) {
  const auto product = [&](uint32_t a, uint32_t b) {
    return number(a & 0xffff) * number(b & 0xffff) + number(a >> 16) * number(b >> 16);
  };
  const int g = lanes::lane() / 4, t = lanes::lane() % 4;
  double exact[4] = {sums[0], sums[1], sums[2], sums[3]};
  lanes::exchange(std::array{w[0], w[1], w[2], w[3], x0, x1}, [&](auto of) {
    for (int pair = 0; pair < 4; ++pair) {  // of columns, and 8 further
      const auto weights = of(4 * g + pair);
      for (int row = 0; row < 2; ++row) {
        const auto x = of(4 * (2 * t + row) + pair);
        for (int lower = 0; lower < 2; ++lower) {
          exact[2 * lower + row] +=
              product(weights[lower], x[4]) + product(weights[2 + lower], x[5]);
        }
      }
    }
    return 0;
  });
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<float>(exact[i]);
}

inline void multiply_tile(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0, uint32_t x1) {
  multiply_any(sums, w, x0, x1, [](uint32_t bits) { return double{__uint_as_float(bits << 16)}; });
}

inline void multiply_halves(float (&sums)[4], const uint32_t (&w)[4], uint32_t x0, uint32_t x1) {
  multiply_any(sums, w, x0, x1, [](uint32_t bits) {
    return double{__half2float({static_cast<unsigned short>(bits)})};
  });
}

// By the definition of e4m3; NaN's codes, which no weight has, become 480.
inline void read_codes(uint32_t codes, uint32_t& first, uint32_t& second) {
  const auto half = [&](int i) {
    const uint32_t code = codes >> 8 * i & 255;
    const int exponent = static_cast<int>(code >> 3 & 15);
    const float fraction = static_cast<float>(exponent == 0 ? code & 7 : 8 + (code & 7));
    const float magnitude = std::ldexp(fraction, std::max(exponent, 1) - 10);
    return uint32_t{__float2half_rn(code & 0x80 ? -magnitude : magnitude).bits};
  };
  first = half(0) | half(1) << 16;
  second = half(2) | half(3) << 16;
}

}  // namespace sluice::cuda
