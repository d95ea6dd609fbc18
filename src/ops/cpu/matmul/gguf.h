// Codes of GGUF's blocks to the bf16 that they stand for.
//
// Included by the matmul/<isa>.cc files only, so that each ISA has vectors of its own (hence the
// unnamed namespace; see matmul/kernel.h). Thread rule: pure functions.
#pragma once

#include <type_traits>

#include "ops/cpu/matmul/integers.h"

namespace sluice {
namespace {

using SignedBytes = int8_t __attribute__((vector_size(8)));
using Bytes = uint8_t __attribute__((vector_size(8)));
using Integers = int32_t __attribute__((vector_size(32)));

// f16 to f32, exact where it is finite: its bits, moved to where f32 has them, are 2^112 times too
// small, also of subnormal numbers.
inline void widen_halves(const uint16_t* from, Floats& to) {
  Halves halves;
  load_vector(halves, from);
  const Words bits = __builtin_convertvector(halves, Words);
  const Words magnitude = (bits & 0x7fffu) << 13;
  const Floats value = reinterpret_cast<Floats>(magnitude) * 0x1p112f;
  to = reinterpret_cast<Floats>(reinterpret_cast<Words>(value) | (bits & 0x8000u) << 16);
}

// scale * factor, or min_scale * minimum, of eight rows.
template <typename EightBytes, typename Factor>
inline void multiply_scales(const uint16_t* scales, const Factor* factors, Floats& products) {
  EightBytes bytes;
  load_vector(bytes, factors);
  widen_halves(scales, products);
  products *= __builtin_convertvector(bytes, Floats);
}

// Finite numbers, rounded to bf16 in the upper half of each word.
inline void round_upper(const Floats& values, Words& rounded) {
  const Words raw = reinterpret_cast<Words>(values);
  rounded = raw + 0x7fffu + ((raw >> 16) & 1u);
}

// Lines of a panel (matmul/integers.h) whose columns are of one group. The product of step and code
// has at most 24 bits in all types of GGUF, so it is exact, and the difference is rounded once,
// with a fused instruction or without.
template <int kBits, typename Loader = Pairs<kBits>>
void convert_gguf(const uint8_t* from, const GgufGroup& group, int64_t num_lines, uint16_t* to) {
  for (int64_t half = 0; half < kPanelRows; half += kWriteLanes) {
    Floats steps;
    Floats offsets = {};
    multiply_scales<SignedBytes>(group.scales + half, group.factors + half, steps);
    if (group.minima != nullptr) {
      multiply_scales<Bytes>(group.min_scales + half, group.minima + half, offsets);
    }
    for (int64_t line = 0; line < num_lines; ++line) {
      Words pairs;
      Loader::load(from + (line * kPanelRows + half) * kBits / 4, pairs);
      Integers evens;
      Integers odds;
      if constexpr (kBits == 4) {
        evens = reinterpret_cast<Integers>(pairs & 15u);
        odds = reinterpret_cast<Integers>(pairs >> 4);
      } else {
        evens = reinterpret_cast<Integers>(pairs << 24) >> 24;
        odds = reinterpret_cast<Integers>(pairs << 16) >> 24;
      }
      Words even;
      Words odd;
      round_upper(steps * __builtin_convertvector(evens, Floats) - offsets, even);
      round_upper(steps * __builtin_convertvector(odds, Floats) - offsets, odd);
      const Words both = even >> 16 | (odd & 0xffff0000u);
      std::memcpy(to + 2 * (line * kPanelRows + half), &both, sizeof(both));
    }
  }
}

}  // namespace
}  // namespace sluice
