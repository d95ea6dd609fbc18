// Numbers of e4m3 to bf16, which is exact, since each is a normal bf16 or 0; NaN stays NaN.
//
// Included by the matmul/<isa>.cc files only, so that each ISA has vectors of its own (hence the
// unnamed namespace; see matmul/kernel.h). Thread rule: pure functions.
#pragma once

#include "ops/cpu/matmul/block.h"
#include "ops/e4m3.h"

namespace sluice {
namespace {

inline constexpr uint16_t e4m3_number(uint8_t code) {
  constexpr int16_t kUnitOrigin = e4m3_origin(127);  // of a scale of 1
  const auto sign = static_cast<uint16_t>((code & 0x80) << 8);
  return (code & 0x7f) == 0x7f ? static_cast<uint16_t>(sign | 0x7fc0)
                               : e4m3_to_bf16(code, kUnitOrigin);
}

// The contract of MatmulKernel::convert_e4m3: 16 bits of integer arithmetic for a number, which the
// compiler turns into vectors of the ISA.
inline void convert_e4m3(const uint8_t* from, int64_t num_lines, uint16_t* to) {
  constexpr int64_t kLine = 2 * kPanelRows;
  for (int64_t line = 0; line < num_lines; ++line, from += kLine, to += kLine) {
    __builtin_prefetch(from + kConvertAhead * kPanelRows);
    for (int64_t i = 0; i < kLine; ++i) to[i] = e4m3_number(from[i]);
  }
}

}  // namespace
}  // namespace sluice
