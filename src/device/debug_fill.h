// kDebugFill: whether memory that was not written yet is filled with NaN.
//
// Asked by the CPU device for fresh memory and by the KV pools for freed slots and blocks. This is
// the one place that looks at the build type. Thread rule: a constant.
#pragma once

#include <cstdint>

namespace sluice {

#ifdef NDEBUG
inline constexpr bool kDebugFill = false;
#else
inline constexpr bool kDebugFill = true;
#endif

// A byte that, repeated, is NaN in every float format.
inline constexpr uint8_t kNanByte = 0xFF;

}  // namespace sluice
