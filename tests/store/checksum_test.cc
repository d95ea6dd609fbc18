// Every kernel gives the value of the xxhash library, whatever the length and the cuts.
#include "store/checksum.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>
#include <xxhash.h>

namespace sluice {
namespace {

std::vector<std::byte> random_bytes(size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

// Around the borders of XXH3's cases: 16, 128, 240 bytes, and stripes and blocks of 1 KiB.
constexpr size_t kLengths[] = {0,   1,   16,   17,   128,  129,  240,     241,    255,
                               256, 257, 1023, 1024, 1025, 4088, 100'000, 1 << 20};

TEST(Checksum, KernelsAgreeWithTheLibrary) {
  const auto kernels = usable_checksum_kernels();
  ASSERT_FALSE(kernels.empty());
  for (const size_t length : kLengths) {
    const auto bytes = random_bytes(length);
    const uint64_t expected = XXH3_64bits(bytes.data(), length);
    EXPECT_EQ(checksum_of(bytes), expected) << length;
    for (size_t i = 0; i < kernels.size(); ++i) {
      EXPECT_EQ(kernels[i]->of(bytes.data(), length), expected) << length << ", kernel " << i;
      for (const size_t piece : {1u, 7u, 64u, 1000u, 65'536u}) {
        if (length / piece > 20'000) continue;  // a million calls
        Checksum checksum(*kernels[i]);
        for (size_t at = 0; at < length; at += piece) {
          checksum.add(std::span(bytes).subspan(at, std::min(piece, length - at)));
        }
        EXPECT_EQ(checksum.value(), expected) << length << " in pieces of " << piece;
      }
    }
  }
}

}  // namespace
}  // namespace sluice
