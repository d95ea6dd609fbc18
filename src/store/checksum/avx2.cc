// XXH3-64 with 256-bit vectors (src/store/CMakeLists.txt).
#include "store/checksum/code.h"

namespace sluice {

const ChecksumKernel kChecksumAvx2 = kCompiledKernel;

}  // namespace sluice
