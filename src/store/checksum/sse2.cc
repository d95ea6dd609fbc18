// XXH3-64 with the 128-bit vectors that every processor has.
#include "store/checksum/code.h"

namespace sluice {

const ChecksumKernel kChecksumSse2 = kCompiledKernel;

}  // namespace sluice
