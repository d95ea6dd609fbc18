// Instructions of src/ops/cuda/instructions.cuh on lanes.
//
// Thread rule: as lanes.h.
#pragma once

#include "ops/lanes/lanes.h"

namespace sluice::cuda {

inline float exp2_approx(float x) { return std::exp2(x); }

inline float reciprocal_approx(float x) { return 1.0f / x; }

inline uint32_t extend_signs(uint32_t word) {
  const auto extended = [](uint32_t byte) { return byte | (byte >= 128 ? 0xff00u : 0u); };
  return extended(word & 255) | extended(word >> 16 & 255) << 16;
}

inline int32_t load_now(const int32_t* source) { return *source; }
inline void prefetch_to_l2(const void*) {}
inline void keep_here(const void*) {}
inline int32_t hidden(int32_t value) { return value; }
inline unsigned char* dynamic_shared_memory() { return lanes::block().shared; }

}  // namespace sluice::cuda
