// bf16 rounding without branches, so that the compiler turns loops over it into vectors, and sums
// over lanes; exp and ln come with it from ops/portable_math.h.
//
// Used by the memory-bound ops and by sampling. The same bits on every ISA. In an unnamed
// namespace, since files that are compiled for one ISA include it (see matmul/kernel.h). Thread
// rule: pure functions.
#pragma once

#include <cstdint>

#include "ops/portable_math.h"

namespace sluice::cpu {
namespace {

using sluice::fast_exp;
using sluice::fast_log;

// BFloat16(value) without a branch.
inline uint16_t round_to_bf16(float value) {
  const uint32_t raw = bit_cast<uint32_t>(value);
  const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  const bool is_nan = (raw & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? ((raw >> 16) | 0x40u) : rounded);
}

// Exact: bf16 is the upper half of f32.
inline float bf16_to_float(uint16_t bits) {
  return bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The sum of kLanes (a power of two) partial sums in the order that halving gives: of 16, lanes i
// and i + 8, then i and i + 4, ...
template <int kLanes>
inline float sum_lanes(float (&lanes)[kLanes]) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace
}  // namespace sluice::cpu
