// Products of src/ops/cuda/wgmma.cuh on lanes: those whose left operand is in registers. They are
// done when they are asked for, and round once.
//
// Thread rule: as lanes.h.
#pragma once

#include <array>

#include "ops/lanes/lanes.h"

namespace sluice::cuda {

inline constexpr int kSwizzleRowBytes = 128;
inline constexpr int kSwizzleUnitBytes = 8 * kSwizzleRowBytes;

// Of a block it begins with one.
template <typename Byte>
Byte* first_unit(Byte* bytes) {
  return bytes;
}

inline uint64_t matrix_descriptor(uint32_t shared_address, uint32_t block_stride_bytes,
                                  uint32_t unit_stride_bytes) {
  return uint64_t{unit_stride_bytes} << 40 | uint64_t{block_stride_bytes} << 20 | shared_address;
}
inline uint64_t advanced(uint64_t descriptor, uint32_t num_bytes) { return descriptor + num_bytes; }

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {}
template <typename Numbers>
void pin_registers(Numbers&) {}

// The number `in_row` bytes along row `row` of an operand. The swizzle is one of addresses.
inline double number_at(uint64_t descriptor, int row, int in_row) {
  const auto base = static_cast<int>(descriptor & 0xfffff);
  const auto block_stride = static_cast<int>(descriptor >> 20 & 0xfffff);
  const auto unit_stride = static_cast<int>(descriptor >> 40);
  const int address = base + row / 8 * unit_stride + row % 8 * kSwizzleRowBytes +
                      in_row / kSwizzleRowBytes * block_stride + in_row % kSwizzleRowBytes;
  uint16_t bits;
  std::memcpy(&bits, lanes::block().shared + (address ^ (address >> 3 & 0x70)), sizeof(bits));
  return double{__uint_as_float(uint32_t{bits} << 16)};
}

// d += a b of 64 rows, 16 a warp; right(k, n): a number of b. Sums of NaN times 0 are NaN, so what
// was not written may not be read.
template <int kColumns, typename Right>
void multiply_rows(float* d, const uint32_t (&a)[4], const Right& right) {
  const int g = lanes::lane() / 4, c = lanes::lane() % 4;
  lanes::exchange(std::array{a[0], a[1], a[2], a[3]}, [&](auto of) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const int n = i / 4 * 8 + 2 * c + i % 2;
      double sum = d[i];
      for (int k = 0; k < 16; ++k) {
        const uint32_t pair = of(4 * g + k % 8 / 2)[static_cast<size_t>(k / 8 * 2 + i % 4 / 2)];
        const uint32_t bits = k % 2 == 0 ? pair << 16 : pair & 0xffff0000;
        sum += double{__uint_as_float(bits)} * right(k, n);
      }
      d[i] = static_cast<float>(sum);
    }
    return 0;
  });
}

// b has a row for each of its 64 tokens, which are columns of the product.
inline void wgmma_scores(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  if (!accumulate) std::fill_n(d, 32, 0.0f);
  multiply_rows<64>(d, a, [&](int k, int n) { return number_at(b, n, 2 * k); });
}

// b has a row for each of 16 tokens, over which the product sums.
inline void wgmma_values(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  multiply_rows<128>(d, a, [&](int k, int n) { return number_at(b, k, 2 * n); });
}

}  // namespace sluice::cuda
