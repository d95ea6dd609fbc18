// Chooses a kernel once.
#include "store/checksum.h"

namespace sluice {
namespace {

const ChecksumKernel& best_kernel() {
  static const ChecksumKernel& kernel = *usable_checksum_kernels().back();
  return kernel;
}

}  // namespace

Checksum::Checksum() : Checksum(best_kernel()) {}

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return best_kernel().of(bytes.data(), bytes.size());
}

}  // namespace sluice
