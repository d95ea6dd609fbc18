// Checksum: XXH3-64 of bytes that come in pieces. It finds damage; it is no protection against a
// forger, who could write a block of his own with all its checksums.
//
// Used by block_file, block_reader and block_writer. The processor decides about the instructions
// and not SLUICE_CPU_ISA, since values do not depend on them. Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/checksum/kernel.h"

namespace sluice {

// The kernels that this processor can run, the fastest last.
std::vector<const ChecksumKernel*> usable_checksum_kernels();

class Checksum {
 public:
  Checksum();
  explicit Checksum(const ChecksumKernel& kernel) : kernel_(kernel) {
    kernel_.reset(state_.data());
  }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes) {
    kernel_.add(state_.data(), bytes.data(), bytes.size());
  }
  uint64_t value() const { return kernel_.value(state_.data()); }

 private:
  const ChecksumKernel& kernel_;
  alignas(kChecksumStateAlign) std::array<std::byte, kChecksumStateBytes> state_;
};

// Of bytes that lie together.
uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace sluice
