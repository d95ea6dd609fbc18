// Philox4x32-10: four random words as a function of a key and a counter, without a state.
//
// Used by every backend of ops/sample and by its reference, so that all draw the same numbers.
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3".
// Thread rule: a pure function.
#pragma once

#include <array>
#include <cstdint>

namespace sluice {

using PhiloxWords = std::array<uint32_t, 4>;

// Ten rounds; the constants are the paper's table 2 (multipliers) and section 4.3 (Weyl sequence).
constexpr PhiloxWords philox4x32_10(PhiloxWords counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// The four words of tokens [4 * group, 4 * group + 4) at one position of a seeded request.
constexpr PhiloxWords sample_words(int64_t seed, int64_t position, uint32_t group) {
  const auto s = static_cast<uint64_t>(seed);
  const auto p = static_cast<uint64_t>(position);
  return philox4x32_10({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), group, 0},
                       {static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32)});
}

// A word as a number strictly between 0 and 1: the middle of its interval of 2^-32.
constexpr double uniform_open(uint32_t word) { return (word + 0.5) * 0x1p-32; }

}  // namespace sluice
