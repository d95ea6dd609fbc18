// Bounds of keys and scores of bounds, written once over the compiler's vectors.
//
// Included by the pages/kernels_<isa>.cc files only; each gets its own copy (hence the unnamed
// namespace in a header). Every score is one fixed chain: lane i of 16 adds channels i, i + 16, ...
// in order, products and sums rounded apart, and a halving tree adds the lanes. No width changes
// it, so all ISAs give the same bits. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/cpu/pages/kernels.h"

namespace sluice {
namespace {

inline constexpr int kScoreLanes = 16;
inline constexpr int32_t kMaxHeadDim = 256;

// `Lanes` provides kLanes and vectors of this many elements: Floats, Words (uint32_t) and Halves
// (uint16_t); and Keys, a vector of 16-bit integers as wide as Floats.

// Loads and stores through memcpy, which needs no alignment and compiles to one instruction.
template <typename Vector, typename T>
inline Vector load(const T* from) {
  Vector value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename Vector, typename T>
inline void store(T* to, const Vector& value) {
  std::memcpy(to, &value, sizeof(value));
}

// bf16 bits to integers of the same order, and back: negative numbers count downwards. A NaN is
// beyond the infinity of its sign and so reaches a bound.
template <typename Keys>
inline Keys ordered(Keys bits) {
  return bits ^ ((bits >> 15) & 0x7fff);
}

// Compares 16-bit integers instead of floats: twice the lanes, and no conversion.
template <typename Lanes>
void bound_keys(const uint16_t* keys, int32_t num_tokens, int32_t head_dim, uint16_t* bounds) {
  using Keys = typename Lanes::Keys;
  constexpr int32_t kWidth = sizeof(Keys) / sizeof(uint16_t);
  static_assert(16 % kWidth == 0);
  for (int32_t d = 0; d < head_dim; d += kWidth) {
    Keys low = ordered(load<Keys>(keys + d));
    Keys high = low;
    for (int32_t t = 1; t < num_tokens; ++t) {
      const Keys key = ordered(load<Keys>(keys + static_cast<int64_t>(t) * head_dim + d));
      low = key < low ? key : low;
      high = key > high ? key : high;
    }
    store(bounds + d, ordered(low));
    store(bounds + head_dim + d, ordered(high));
  }
}

// `count` bf16 to f32.
template <typename Lanes>
inline void widen(const uint16_t* bits, int32_t count, float* out) {
  for (int32_t i = 0; i < count; i += Lanes::kLanes) {
    const auto half = load<typename Lanes::Halves>(bits + i);
    store(out + i, __builtin_convertvector(half, typename Lanes::Words) << 16);
  }
}

// Adds 16 lanes as 8 + 8, 4 + 4, 2 + 2, 1 + 1.
inline float halving_sum(const float* lanes) {
  float sum[kScoreLanes / 2];
  for (int i = 0; i < 8; ++i) sum[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) sum[i] += sum[i + 4];
  for (int i = 0; i < 2; ++i) sum[i] += sum[i + 2];
  return sum[0] + sum[1];
}

// Converts the bounds to f32 once for all heads of the group.
template <typename Lanes>
float score_page(const float* q, int32_t num_heads, int32_t head_dim, const uint16_t* bounds) {
  using Floats = typename Lanes::Floats;
  constexpr int kVectors = kScoreLanes / Lanes::kLanes;
  alignas(64) float minmax[2 * kMaxHeadDim];
  widen<Lanes>(bounds, 2 * head_dim, minmax);
  float best = 0.0f;  // replaced by the first head's score, which may be negative
  for (int32_t head = 0; head < num_heads; ++head) {
    const float* query = q + static_cast<int64_t>(head) * head_dim;
    Floats sum[kVectors] = {};
    for (int32_t d = 0; d < head_dim; d += kScoreLanes) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const int32_t at = d + v * Lanes::kLanes;
        const auto channel = load<Floats>(query + at);
        const Floats low = channel * load<Floats>(minmax + at);
        const Floats high = channel * load<Floats>(minmax + head_dim + at);
        sum[v] += low > high ? low : high;
      }
    }
    alignas(64) float lanes[kScoreLanes];
    for (int v = 0; v < kVectors; ++v) store(lanes + v * Lanes::kLanes, sum[v]);
    // The maximum over heads keeps the first of equal scores; a NaN never replaces a number.
    const float score = halving_sum(lanes);
    best = head == 0 || score > best ? score : best;
  }
  return best;
}

template <typename Lanes>
constexpr PageKernels make_page_kernels() {
  return {.bound_keys = bound_keys<Lanes>, .score_page = score_page<Lanes>};
}

}  // namespace
}  // namespace sluice
