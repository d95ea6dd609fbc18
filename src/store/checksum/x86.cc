// The kernels that an x86 processor can run.
#include "store/checksum.h"

namespace sluice {

std::vector<const ChecksumKernel*> usable_checksum_kernels() {
  std::vector<const ChecksumKernel*> kernels = {&kChecksumSse2};
  if (__builtin_cpu_supports("avx2")) kernels.push_back(&kChecksumAvx2);
  if (__builtin_cpu_supports("avx512f")) kernels.push_back(&kChecksumAvx512);
  return kernels;
}

}  // namespace sluice
