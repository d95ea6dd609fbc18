// kDebugFill: whether memory that was not written yet is filled with NaN, so that a stale read
// shows in the results.
//
// Used by the devices for fresh memory and by the KV pools for freed slots, blocks, stages and
// tails. No other file depends on the build type. Thread rule: a constant.
#pragma once

#include <cstdint>

namespace sluice {

#ifdef NDEBUG
inline constexpr bool kDebugFill = false;
#else
inline constexpr bool kDebugFill = true;
#endif

// Repeated, this byte is a NaN in f32, bf16 and f16.
inline constexpr uint8_t kNanByte = 0xFF;

}  // namespace sluice
