// ChecksumKernel: XXH3-64 for one instruction set.
//
// Used by checksum alone. The library's own code has 128-bit vectors, with which hashing takes a
// fifth of the time of a read from the page cache; wider ones take a third of that. The three give
// the same values. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

// A state is this large, and begins at a multiple of kChecksumStateAlign.
inline constexpr size_t kChecksumStateBytes = 576;
inline constexpr size_t kChecksumStateAlign = 64;

struct ChecksumKernel {
  void (*reset)(std::byte* state);
  void (*add)(std::byte* state, const std::byte* bytes, size_t num_bytes);
  uint64_t (*value)(const std::byte* state);
  uint64_t (*of)(const std::byte* bytes, size_t num_bytes);
};

extern const ChecksumKernel kChecksumSse2;    // any processor; on aarch64 with NEON
extern const ChecksumKernel kChecksumAvx2;    // one with AVX2
extern const ChecksumKernel kChecksumAvx512;  // one with AVX-512F

}  // namespace sluice
