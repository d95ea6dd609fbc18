// Integers of 4 and 8 bits, less their zero points, to bf16, which is exact.
//
// Included by the matmul/<isa>.cc files only, so that each ISA has vectors of its own (hence the
// unnamed namespace; see matmul/kernel.h). Thread rule: pure functions.
#pragma once

#include <type_traits>

#include "ops/cpu/matmul/block.h"

namespace sluice {
namespace {

// Pairs of numbers of eight rows, zero-extended: bytes of two numbers, or two bytes.
template <int kBits>
struct Pairs {
  static void load(const uint8_t* from, Words& pairs) {
    using Bytes = uint8_t __attribute__((vector_size(8)));
    std::conditional_t<kBits == 4, Bytes, Halves> packed;
    std::memcpy(&packed, from, sizeof(packed));
    pairs = __builtin_convertvector(packed, Words);
  }
};

// A line is an even and the next odd column of a panel: for each of its 16 rows a pair, the even
// number in the lower half. 2^23 + n is exact in f32 and has n in its lowest bits, so a number
// becomes one by an `or`; less 2^23 and the zero point it is an integer of at most 8 bits and a
// sign, whose bf16 is the upper half. Half a line at a time. `Loader` is Pairs, or what has its
// contract and instructions of the ISA.
template <int kBits, typename Loader = Pairs<kBits>>
void convert_integers(const uint8_t* from, const uint8_t* zeros, int64_t num_lines, uint16_t* to) {
  constexpr uint32_t kOffset = 0x4b000000u;  // 2^23
  for (int64_t half = 0; half < kPanelRows; half += kWriteLanes) {
    Floats offsets;
    for (int64_t i = 0; i < kWriteLanes; ++i) {
      offsets[i] = 0x1p23f + static_cast<float>(zeros[half + i]);
    }
    for (int64_t line = 0; line < num_lines; ++line) {
      const uint8_t* const place = from + (line * kPanelRows + half) * kBits / 4;
      __builtin_prefetch(place + kConvertAhead * kPanelRows * kBits / 8);
      Words pairs;
      Loader::load(place, pairs);
      const Words evens = (pairs & ((1u << kBits) - 1)) | kOffset;
      const Words odds = (pairs >> kBits) | kOffset;
      const Floats even = reinterpret_cast<Floats>(evens) - offsets;
      const Floats odd = reinterpret_cast<Floats>(odds) - offsets;
      const Words both =
          reinterpret_cast<Words>(even) >> 16 | (reinterpret_cast<Words>(odd) & 0xffff0000u);
      std::memcpy(to + 2 * (line * kPanelRows + half), &both, sizeof(both));
    }
  }
}

}  // namespace
}  // namespace sluice
