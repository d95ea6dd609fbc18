// Codes of GGUF's blocks to bf16 where the CPU has AVX-512-BF16, which rounds in one instruction.
//
// Used by matmul/avx512.cc. Thread rule: see matmul/kernel.h.
#include "ops/cpu/matmul/gguf_avx512.h"

namespace sluice {

void convert_gguf4_avx512bf16(const uint8_t* from, const GgufGroup& group, int64_t num_lines,
                              uint16_t* to) {
  convert_gguf_avx512<4>(from, group, num_lines, to);
}

void convert_gguf8_avx512bf16(const uint8_t* from, const GgufGroup& group, int64_t num_lines,
                              uint16_t* to) {
  convert_gguf_avx512<8>(from, group, num_lines, to);
}

}  // namespace sluice
