// Chooses a kernel once.
#include "store/checksum.h"

namespace sluice {
namespace {

const ChecksumKernel& best_kernel() {
  static const ChecksumKernel& kernel = *usable_checksum_kernels().back();
  return kernel;
}

}  // namespace

std::vector<const ChecksumKernel*> usable_checksum_kernels() {
  std::vector<const ChecksumKernel*> kernels = {&kChecksumSse2};
  if (__builtin_cpu_supports("avx2")) kernels.push_back(&kChecksumAvx2);
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(&kChecksumAvx512);
  return kernels;
}

Checksum::Checksum() : Checksum(best_kernel()) {}

uint64_t checksum_of(std::span<const std::byte> bytes) {
  return best_kernel().of(bytes.data(), bytes.size());
}

}  // namespace sluice
