// The bits of the mixers, from their published code: stored texts and tables depend on them.
#include "core/mix.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Mix, HasTheBitsOfMurmurHash3) {
  EXPECT_EQ(murmur_mix(0), 0u);
  EXPECT_EQ(murmur_mix(1), 0xb456bcfc34c2cb2cu);
  EXPECT_EQ(murmur_mix(0x123456789abcdef0u), 0x18b8c062f6f42398u);
  EXPECT_EQ(murmur_mix32(0), 0u);
  EXPECT_EQ(murmur_mix32(1), 0x514e28b7u);
  EXPECT_EQ(murmur_mix32(0x12345678u), 0xe37cd1bcu);
}

TEST(Mix, HasTheBitsOfSplitMix64) {
  uint64_t state = 1234567;
  EXPECT_EQ(split_mix(state), 6457827717110365317u);
  EXPECT_EQ(split_mix(state), 3203168211198807973u);
  EXPECT_EQ(split_mixed(1234567), 6457827717110365317u);
}

}  // namespace
}  // namespace sluice
