// Functions that spread numbers over all bits, equal on every machine: seeds, draws of random
// weights and texts, and choices of rows that follow no pattern.
//
// Stored texts, measured tables and tests depend on these bits. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sluice {

// 2^64 divided by the golden ratio, odd: multiples of it are far from each other.
inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// A bijection after which neighbouring numbers have nothing in common. Source: the finalizers of
// MurmurHash3.
constexpr uint64_t murmur_mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}
constexpr uint32_t murmur_mix32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// SplitMix64: advances `state` and returns 64 random bits. Source: Steele, Lea and Flood 2014,
// "Fast splittable pseudorandom number generators".
constexpr uint64_t split_mix(uint64_t& state) {
  uint64_t z = (state += kGolden);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// The bits that follow state `x`, which spread it as murmur_mix does.
constexpr uint64_t split_mixed(uint64_t x) { return split_mix(x); }

}  // namespace sluice
