// XXH3-64 with 512-bit vectors (src/store/CMakeLists.txt).
#include "store/checksum/code.h"

namespace sluice {

const ChecksumKernel kChecksumAvx512 = kCompiledKernel;

}  // namespace sluice
